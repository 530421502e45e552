// SPDX-License-Identifier: Apache-2.0
// The whole public C++ interface.
#pragma once

#include "gradsieve/compressor.hpp"
#include "gradsieve/context.hpp"
#include "gradsieve/device_exchange.hpp"
#include "gradsieve/exchange.hpp"
#include "gradsieve/hook.hpp"
#include "gradsieve/memory.hpp"
#include "gradsieve/registry.hpp"
#include "gradsieve/selection.hpp"
#include "gradsieve/sparsifier.hpp"
#include "gradsieve/spec.hpp"
#include "gradsieve/state.hpp"
#include "gradsieve/transport.hpp"
#include "gradsieve/vocabulary.hpp"
#include "gradsieve/wire.hpp"
