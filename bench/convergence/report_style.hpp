// SPDX-License-Identifier: Apache-2.0
// The style sheet of the report. The colours are after Okabe and Ito, so that they differ for
// readers with any colour vision; the dense baselines are grey, and what is studied has the colour.
#pragma once

namespace gradsieve::study {

inline constexpr char const* kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --page: #f7f7f5; --card: #ffffff; --ink: #1b2230; --muted: #5c6573; --rule: #e2e4e7; --grid: #eceef0;
  --s0: #3f4753; --s1: #8a93a0; --s2: #0072b2; --s3: #c8550a; --s4: #00805d; --s5: #a8478f; --s6: #97690a; --s7: #2a7f9e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #13161b; --card: #1a1e25; --ink: #e7e9ed; --muted: #9ba4b2; --rule: #2c323b; --grid: #252b33;
    --s0: #d3d8df; --s1: #8993a1; --s2: #57b1ee; --s3: #ff9655; --s4: #3fcb9e; --s5: #e18fd0; --s6: #eab544; --s7: #86d3f0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif;
  -webkit-text-size-adjust: 100%;
}
main { max-width: 1180px; margin: 0 auto; padding: 40px 24px 64px; }
code, .spec { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; font-size: 0.88em; }
.kicker { margin: 0; color: var(--muted); font-size: 13px; letter-spacing: 0.06em; text-transform: uppercase; }
h1 { margin: 4px 0 14px; font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.01em; }
h2 { margin: 52px 0 4px; font-size: 20px; font-weight: 650; }
h3 { margin: 0 0 2px; font-size: 14.5px; font-weight: 650; }
.lede { max-width: 92ch; margin: 0 0 8px; font-size: 16.5px; }
.note { max-width: 112ch; margin: 8px 0 0; color: var(--muted); font-size: 13.5px; }
.facts { display: flex; flex-wrap: wrap; gap: 6px 28px; margin: 18px 0 0; padding: 0; color: var(--muted); font-size: 13px; }
.facts div { max-width: 100%; }
.facts dt { display: inline; margin-right: 6px; }
.facts dd { display: inline; margin: 0; color: var(--ink); overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin-top: 14px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
table { width: 100%; border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }
th { color: var(--muted); font-weight: 500; font-size: 12.5px; text-align: right; vertical-align: bottom; }
th, td { padding: 8px 10px; white-space: nowrap; }
td { text-align: right; border-top: 1px solid var(--rule); }
th:first-child, td:first-child { text-align: left; padding-left: 18px; }
th:last-child, td:last-child { padding-right: 18px; }
tr.model th { padding-top: 14px; padding-bottom: 6px; text-align: left; color: var(--ink); font-size: 13.5px; font-weight: 650; border-top: 1px solid var(--rule); }
td.spec { min-width: 280px; white-space: normal; overflow-wrap: anywhere; }
small { color: var(--muted); font-size: 0.86em; }
td small { display: block; line-height: 1.25; }
.swatch { display: inline-block; width: 11px; height: 11px; margin-right: 9px; border-radius: 3px; background: currentColor; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 8px 0 0; padding: 0; list-style: none; font-size: 13.5px; }
.legend .spec { color: var(--ink); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 18px; margin-top: 16px; }
figure { margin: 0; padding: 16px 16px 8px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; overflow-x: auto; }
figure.wide { grid-column: 1 / -1; }
figure.wide .panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: 8px; }
figcaption { margin: 0 0 10px; }
figcaption p { margin: 0; color: var(--muted); font-size: 13px; line-height: 1.4; }
svg { display: block; width: 100%; height: auto; min-width: 300px; overflow: visible; }
svg text { font-size: 12px; fill: var(--muted); font-variant-numeric: tabular-nums; }
svg .axis-label { font-size: 12.5px; fill: var(--ink); }
svg .label { font-weight: 550; }
svg .end { text-anchor: end; }
svg .middle { text-anchor: middle; }
.grid { stroke: var(--grid); stroke-width: 1; }
.grid.minor { opacity: 0.6; }
.axis { stroke: var(--muted); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.s0 { stroke-width: 2.6; }
.line.s1 { stroke-dasharray: 6 4; }
.band { fill: currentColor; opacity: 0.16; }
.dot { fill: currentColor; stroke: var(--card); stroke-width: 1.5; }
.whisker { stroke: currentColor; stroke-width: 1.6; opacity: 0.7; }
.leader { stroke: currentColor; stroke-width: 1; opacity: 0.45; }
svg text.label { fill: currentColor; }
svg text.halo { paint-order: stroke; stroke: var(--card); stroke-width: 3.5px; stroke-linejoin: round; }
rect.part0 { fill: var(--muted); opacity: 0.45; }
rect.part1 { fill: currentColor; opacity: 0.55; }
rect.part2 { fill: currentColor; }
.key { display: inline-block; width: 22px; height: 10px; margin: 0 6px 0 14px; border-radius: 2px; background: var(--s2); }
.key:first-child { margin-left: 0; }
.key.part0 { background: var(--muted); opacity: 0.45; }
.key.part1 { opacity: 0.55; }
.s0 { color: var(--s0); } .s1 { color: var(--s1); } .s2 { color: var(--s2); } .s3 { color: var(--s3); }
.s4 { color: var(--s4); } .s5 { color: var(--s5); } .s6 { color: var(--s6); } .s7 { color: var(--s7); }
@media (max-width: 640px) { td.spec { min-width: 210px; } main { padding: 24px 14px 48px; } h1 { font-size: 24px; } svg text, svg .axis-label { font-size: 13.5px; } }
@media print { body { background: #fff; } figure, .scroll { break-inside: avoid; } }
)css";

}  // namespace gradsieve::study
