// SPDX-License-Identifier: Apache-2.0
// Spec strings to stages and back. Only the grammar is looked at; names are the registry's affair.
#include "gradsieve/spec.hpp"

#include <algorithm>

#include "gradsieve/vocabulary.hpp"

namespace gradsieve {
namespace {

constexpr std::string_view kPunctuation = ",()|;=";
constexpr std::size_t kShownBefore = 48;  // characters of a long spec shown around a mistake
constexpr std::size_t kShownAfter = 24;

bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_letter(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
// Wrong spellings such as topK and top-k are words as well, so that the registry sees them whole
// and can say what was meant.
bool is_word(char c) noexcept { return is_letter(c) || (c >= '0' && c <= '9') || c == '-'; }
bool is_control(char c) noexcept { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }
bool is_value(char c) noexcept {
  return !is_blank(c) && !is_control(c) && kPunctuation.find(c) == std::string_view::npos;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Spec parse() {
    Spec spec;
    do {
      spec.chain.push_back(stage("the name of a stage"));
    } while (accept('|'));
    while (accept(';')) spec.clauses.push_back(clause());
    if (position_ < text_.size()) fail(after_stage_);
    return spec;
  }

 private:
  // A clause's value may be a count, as in dense_below=4096; the name of a stage may not.
  Stage stage(char const* expected, bool (&may_begin)(char) noexcept = is_letter) {
    Stage stage;
    stage.name = word(expected, may_begin);
    after_stage_ = "'(', '|', ';' or the end";
    if (!accept('(')) return stage;
    if (!accept(')')) {
      do {
        stage.arguments.push_back(argument());
      } while (accept(','));
      if (!accept(')')) fail("',' or ')'");
    }
    after_stage_ = "'|', ';' or the end";
    return stage;
  }

  Clause clause() {
    Clause clause;
    clause.key = word("the key of a clause, as in ; feedback=residual");
    if (!accept('=')) fail("'='");
    clause.value = stage("the value of the clause", is_word);
    return clause;
  }

  Stage::Argument argument() {
    Stage::Argument argument;
    skip_blanks();
    std::size_t const begin = position_;
    argument.value = value("a parameter, as in density=0.01");
    if (!accept('=')) return argument;
    if (!is_letter(argument.value.front()) ||
        !std::all_of(argument.value.begin(), argument.value.end(), is_word)) {
      position_ = begin;
      fail("the name of a parameter before '='");
    }
    argument.key = std::move(argument.value);
    argument.value = value("a value");
    return argument;
  }

  std::string word(char const* expected, bool (&may_begin)(char) noexcept = is_letter) {
    skip_blanks();
    std::size_t const begin = position_;
    if (begin == text_.size() || !may_begin(text_[begin])) fail(expected);
    while (position_ < text_.size() && is_word(text_[position_])) ++position_;
    return std::string(text_.substr(begin, position_ - begin));
  }

  std::string value(char const* expected) {
    skip_blanks();
    std::size_t const begin = position_;
    while (position_ < text_.size() && is_value(text_[position_])) ++position_;
    if (position_ == begin) fail(expected);
    return std::string(text_.substr(begin, position_ - begin));
  }

  void skip_blanks() noexcept {
    while (position_ < text_.size() && is_blank(text_[position_])) ++position_;
  }

  bool accept(char c) noexcept {
    skip_blanks();
    if (position_ == text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }

  [[noreturn]] void fail(std::string const& expected) const {
    // One byte is one column, so that the caret stands under the right character.
    auto const shown = [](char c) {
      return is_control(c) || static_cast<unsigned char>(c) >= 0x80 ? '?' : c;
    };
    std::size_t const begin = position_ > kShownBefore ? position_ - kShownBefore : 0;
    std::size_t const end = std::min(text_.size(), position_ + kShownAfter);
    std::string line = begin > 0 ? "..." : "";
    std::size_t const column = line.size() + position_ - begin;
    for (char const c : text_.substr(begin, end - begin)) line += shown(c);
    if (end < text_.size()) line += "...";
    std::string const found =
        position_ == text_.size() ? "the end" : "'" + std::string(1, shown(text_[position_])) + "'";
    throw Error(Code::invalid_argument, "spec, character " + std::to_string(position_ + 1) +
                                            ": expected " + expected + ", found " + found + "\n  " +
                                            line + "\n  " + std::string(column, ' ') + "^");
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::string after_stage_;
};

void append(std::string& text, Stage const& stage) {
  text += stage.name;
  if (stage.arguments.empty()) return;
  char const* separator = "(";
  for (Stage::Argument const& argument : stage.arguments) {
    text += separator;
    if (!argument.key.empty()) text += argument.key + "=";
    text += argument.value;
    separator = ", ";
  }
  text += ')';
}

}  // namespace

Spec parse_spec(std::string_view text) { return Parser(text).parse(); }

std::string format_spec(Spec const& spec) {
  std::string text;
  for (Stage const& stage : spec.chain) {
    if (!text.empty()) text += " | ";
    append(text, stage);
  }
  for (Clause const& clause : spec.clauses) {
    text += " ; " + clause.key + "=";
    append(text, clause.value);
  }
  return text;
}

}  // namespace gradsieve
