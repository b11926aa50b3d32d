"use strict";
// Draws the charts of a report from the JSON in the page. Text of a run reaches the page through textContent only.

const DATA = JSON.parse(document.getElementById("data").textContent);
const AREAS = 8; // colours that page.css defines for stacked areas
const HEIGHT = 210, LEFT = 48, RIGHT = 12, TOP = 10, BOTTOM = 24;
const view = { axis: "updates", smooth: 1, hidden: new Set() };

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function swatch(colour) {
  const made = element("i", { class: "swatch" });
  made.style.background = colour;
  return made;
}

const runColour = (group) => `var(--run${DATA.groups[group].colour})`;

// ---- numbers ----

function format(value, scale) {
  if (value === null) return "nan";
  if (scale === "percent" || scale === "rate") return `${+(100 * value).toPrecision(3)} %`;
  if (scale === "seconds") {
    const round = Math.round(value);
    if (round < 60) return `${round}s`;
    if (round >= 3600) return `${+(round / 3600).toFixed(2)}h`;
    return `${Math.floor(round / 60)}m${round % 60 ? `${String(round % 60).padStart(2, "0")}s` : ""}`;
  }
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-3)) return value.toExponential(1).replace("e+", "e");
  return value.toLocaleString("en", { maximumSignificantDigits: size >= 1000 ? 7 : 4 });
}

// Round numbers that span low..high: steps of 1, 2 or 5 times a power of ten (of whole minutes for times).
function ticks(low, high, count, scale = "number") {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough);
  if (scale === "seconds" && rough > 10) {
    step = [30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400].find((candidate) => candidate >= rough) || step;
  }
  const made = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) made.push(i * step + 0); // + 0: no -0
  return made;
}

// Powers of ten, unless there is none in between.
function decades(low, high) {
  const whole = ticks(low, high, 4).filter(Number.isInteger);
  return whole.length ? whole : ticks(low, high, 3);
}

// Centred moving average over the points that exist; a missing point stays missing.
function smoothed(values, window) {
  const half = Math.floor(window / 2);
  return values.map((value, i) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, i - half), i + half + 1).filter((x) => x !== null);
    return near.reduce((sum, x) => sum + x, 0) / near.length;
  });
}

// ---- one chart ----

// What a chart draws: for each visible group and line the points, with colour and band.
function curves(chart) {
  const made = [];
  DATA.groups.forEach((group, index) => {
    if (view.hidden.has(index) || (chart.group >= 0 && chart.group !== index)) return;
    const several = chart.lines.length > 1;
    if (chart.style === "path") {
      const [across, up] = chart.lines.map((line) => DATA.tables[index][line.kind]?.y[line.name]);
      if (across && up) made.push({ colour: runColour(index), label: group.name, xs: across, ys: up });
      return;
    }
    chart.lines.forEach((line, position) => {
      const table = DATA.tables[index][line.kind];
      const ys = table?.y[line.name];
      if (!ys) return;
      const stack = chart.style === "stack";
      made.push({
        colour: stack ? `var(--area${position % AREAS})` : runColour(index),
        label: stack ? line.label : several ? `${group.name}, ${line.label}` : group.name,
        dash: line.dash, noisy: !line.kind.startsWith("eval"), xs: table.x[view.axis], ys, low: table.low[line.name], high: table.high[line.name],
      });
    });
  });
  return made;
}

function extent(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  let low = Infinity, high = -Infinity;
  for (const value of known) { low = Math.min(low, value); high = Math.max(high, value); }
  return known.length ? [low, high] : [0, 1];
}

function yRange(chart, drawn) {
  if (chart.scale === "rate") return [0, 1];
  let [low, high] = extent(drawn.flatMap((c) => [...c.ys, ...(c.low || []), ...(c.high || [])]));
  if (chart.style === "stack") low = 0;
  if (chart.scale === "percent" && low < 0.5 * high) low = 0;
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low === 0 ? 0 : low - room, high + room];
}

// The path through all points that exist; a gap starts a new piece. A piece of one point becomes a dot (round caps).
function path(xs, ys, toX, toY) {
  let open = false;
  let text = "";
  ys.forEach((y, i) => {
    if (y === null || xs[i] === null) { open = false; return; }
    text += `${open ? "L" : "M"}${toX(xs[i]).toFixed(1)} ${toY(y).toFixed(1)}`;
    if (!open) text += "h0";
    open = true;
  });
  return text;
}

function band(curve, toX, toY) {
  const there = curve.xs.map((_, i) => i).filter((i) => curve.low[i] !== null && curve.high[i] !== null && curve.xs[i] !== null);
  const forth = there.map((i) => `${toX(curve.xs[i]).toFixed(1)} ${toY(curve.high[i]).toFixed(1)}`);
  const back = there.reverse().map((i) => `${toX(curve.xs[i]).toFixed(1)} ${toY(curve.low[i]).toFixed(1)}`);
  return forth.length ? `M${[...forth, ...back].join("L")}Z` : "";
}

// Turns phases into areas on top of each other: `low` and `high` of each become its floor and ceiling.
function stacked(drawn) {
  let floor = drawn.length ? drawn[0].xs.map(() => 0) : [];
  return drawn.map((curve) => {
    const ceiling = floor.map((value, i) => value + (curve.ys[i] || 0));
    const area = { ...curve, low: floor, high: ceiling, values: curve.ys, ys: ceiling };
    floor = ceiling;
    return area;
  });
}

function draw(figure, chart) {
  figure.querySelector(":scope > svg")?.remove();
  const log = chart.scale === "log";
  const stack = chart.style === "stack";
  let drawn = curves(chart);
  if (log) drawn = drawn.map((c) => ({ ...c, ys: c.ys.map((y) => (y > 0 ? Math.log10(y) : null)), low: undefined, high: undefined }));
  if (stack) drawn = stacked(drawn);
  const width = Math.max(figure.clientWidth - 26, 200);
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, height: HEIGHT, role: "img", "aria-label": chart.title });
  const axisScale = chart.style !== "path" && view.axis === "seconds" ? "seconds" : "number";
  const [x0, x1] = extent(drawn.flatMap((curve) => curve.xs));
  const [y0, y1] = yRange(chart, drawn);
  const toX = (x) => LEFT + ((x - x0) / (x1 - x0 || 1)) * (width - LEFT - RIGHT);
  const toY = (y) => HEIGHT - BOTTOM - ((y - y0) / (y1 - y0 || 1)) * (HEIGHT - TOP - BOTTOM);
  for (const y of log ? decades(y0, y1) : ticks(y0, y1, 5)) {
    svg.append(shape("line", { class: "gridline", x1: LEFT, x2: width - RIGHT, y1: toY(y), y2: toY(y) }));
    const label = format(log ? 10 ** y : y, chart.scale);
    svg.append(shape("text", { x: LEFT - 7, y: toY(y) + 4, "text-anchor": "end" }, label));
  }
  for (const x of ticks(x0, x1, Math.max(2, Math.floor(width / 90)), axisScale)) {
    const anchor = toX(x) > width - 24 ? "end" : "middle";
    svg.append(shape("text", { x: toX(x), y: HEIGHT - 6, "text-anchor": anchor }, format(x, axisScale)));
  }
  for (const curve of drawn) {
    if (curve.low) svg.append(shape("path", { d: band(curve, toX, toY), fill: curve.colour, "fill-opacity": stack ? 0.9 : 0.14 }));
  }
  for (const curve of stack ? [] : drawn) svg.append(...strokes(curve, chart, toX, toY));
  if (chart.style !== "path") follow(svg, chart, drawn, toX);
  figure.append(svg);
}

// A curve; where it is smoothed, its own points stay as a faint one behind. Evaluations are few, and never smoothed.
function strokes(curve, chart, toX, toY) {
  const common = { fill: "none", stroke: curve.colour, "stroke-linejoin": "round", "stroke-linecap": "round" };
  if (chart.style === "path") {
    return curve.ys.flatMap((y, i) => (y === null || curve.xs[i] === null ? [] : [shape("circle", {
      cx: toX(curve.xs[i]), cy: toY(y), r: 2.6, fill: curve.colour, "fill-opacity": 0.15 + (0.75 * i) / curve.ys.length,
    })]));
  }
  const dash = curve.dash ? { "stroke-dasharray": curve.dash } : {};
  const plain = path(curve.xs, curve.ys, toX, toY);
  const made = [];
  const smooth = view.smooth > 1 && curve.noisy;
  if (smooth) made.push(shape("path", { ...common, d: plain, "stroke-width": 1, "stroke-opacity": 0.28 }));
  const main = smooth ? path(curve.xs, smoothed(curve.ys, view.smooth), toX, toY) : plain;
  made.push(shape("path", { ...common, ...dash, d: main, "stroke-width": 1.8 }));
  return made;
}

// Shows the numbers of the nearest point of every curve beside the pointer.
function follow(svg, chart, drawn, toX) {
  const tip = document.getElementById("tip");
  const cursor = shape("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  const hide = () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    const distance = (x) => (x === null ? Infinity : Math.abs(toX(x) - at));
    const nearest = drawn.map((c) => c.xs.reduce((best, x, i) => (distance(x) < distance(c.xs[best]) ? i : best), 0));
    const shown = drawn.map((curve, k) => ({ curve, i: nearest[k] })).filter(({ curve, i }) => distance(curve.xs[i]) < 40);
    if (!shown.length) { hide(); return; }
    const closest = shown.reduce((a, b) => (distance(b.curve.xs[b.i]) < distance(a.curve.xs[a.i]) ? b : a));
    const x = closest.curve.xs[closest.i];
    const title = view.axis === "seconds" ? `after ${format(x, "seconds")}` : `${view.axis} ${format(x, "number")}`;
    tip.replaceChildren(element("div", {}, title), ...shown.map(({ curve, i }) => {
      const value = (curve.values || curve.ys)[i];
      const text = format(chart.scale === "log" && value !== null ? 10 ** value : value, chart.scale);
      const range = curve.low && !curve.values && curve.low[i] !== null
        ? ` (${format(curve.low[i], chart.scale)} to ${format(curve.high[i], chart.scale)})` : "";
      return element("div", {}, swatch(curve.colour), element("span", {}, curve.label), element("b", {}, text + range));
    }));
    cursor.setAttribute("x1", toX(x));
    cursor.setAttribute("x2", toX(x));
    cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    const left = Math.min(event.pageX + 14, window.scrollX + document.documentElement.clientWidth - tip.offsetWidth - 8);
    tip.style.left = `${Math.max(left, 4)}px`;
    tip.style.top = `${event.pageY + 16}px`;
  });
}

// ---- the page ----

function keys(chart) {
  const lines = chart.style === "path" || chart.lines.length < 2 ? [] : chart.lines;
  return element("span", { class: "keys" }, ...lines.map((line, position) => {
    if (chart.style === "stack") return element("span", {}, swatch(`var(--area${position % AREAS})`), line.label);
    const sample = shape("svg", { width: 22, height: 8, style: "width:22px" });
    sample.append(shape("line", { x1: 0, x2: 22, y1: 4, y2: 4, stroke: "currentColor", "stroke-width": 2, "stroke-dasharray": line.dash || "none" }));
    return element("span", {}, sample, line.label);
  }));
}

const figures = []; // [figure, chart]

function build() {
  const place = document.getElementById("curves");
  for (const section of DATA.sections) {
    const grid = element("div", { class: "grid" });
    for (const chart of section.charts) {
      const figure = element("figure", {}, element("figcaption", {}, element("span", {}, chart.title), keys(chart)));
      grid.append(figure);
      figures.push([figure, chart]);
    }
    if (section.folded) {
      const details = element("details", {}, element("summary", {}, `${section.title} (${section.charts.length})`), grid);
      details.addEventListener("toggle", redraw);
      place.append(details);
    } else {
      place.append(element("section", {}, element("h2", {}, section.title), element("p", { class: "note" }, section.note), grid));
    }
  }
}

function redraw() {
  for (const [figure, chart] of figures) if (figure.offsetParent !== null) draw(figure, chart);
}

function legend() {
  const place = document.getElementById("legend");
  DATA.groups.forEach((group, index) => {
    const button = element("button", { "aria-pressed": "true" }, swatch(runColour(index)), group.name);
    button.addEventListener("click", () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      button.setAttribute("aria-pressed", String(!view.hidden.has(index)));
      redraw();
    });
    place.append(button);
  });
  const choose = (id, set) => document.getElementById(id).addEventListener("change", (event) => { set(event.target.value); redraw(); });
  choose("axis", (value) => { view.axis = value; });
  choose("smooth", (value) => { view.smooth = Number(value); });
}

build();
legend();
redraw();
let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) { width = window.innerWidth; redraw(); }
});
