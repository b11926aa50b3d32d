"use strict";
// Browses the stored trajectories: filters, a list of episodes, and one episode to step through.

const FILTERS = [
  ["run", (t) => t.run],
  ["tick", (t) => `${t.kind} ${t.tick}`],
  ["policy", (t) => t.policy],
  ["type", (t) => t.task_type],
  ["end", (t) => (t.success ? "success" : "no success")],
];
const chosen = {}; // filter -> value; absent for all
const shown = { list: [], episode: 0, step: 0 };

function matching(except) {
  const active = FILTERS.filter(([name]) => name !== except && chosen[name] !== undefined);
  return DATA.trajectories.filter((t) => active.every(([name, value]) => value(t) === chosen[name]));
}

// Each filter offers what the other filters leave.
function filters() {
  const place = document.getElementById("filters");
  place.replaceChildren(...FILTERS.map(([name, value]) => {
    const options = [...new Set([...matching(name).map(value), ...(chosen[name] === undefined ? [] : [chosen[name]])])];
    const select = element("select", {}, element("option", { value: "" }, "all"));
    options.forEach((option, i) => select.append(element("option", { value: String(i + 1) }, option)));
    select.selectedIndex = chosen[name] === undefined ? 0 : options.indexOf(chosen[name]) + 1;
    select.addEventListener("change", () => {
      if (select.selectedIndex === 0) delete chosen[name];
      else chosen[name] = options[select.selectedIndex - 1];
      filter();
    });
    return element("label", {}, `${name} `, select);
  }));
}

function filter() {
  filters();
  shown.list = matching("");
  const place = document.getElementById("episodes");
  place.replaceChildren(...shown.list.map((t, i) => {
    const mark = element("span", { class: t.success ? "good" : "bad" }, t.success ? "✓ " : "✗ ");
    const where = `${t.run}, ${t.kind} ${t.tick}, ${t.policy}, ${t.steps.length} steps`;
    const item = element("li", {}, mark, t.task || t.task_id, element("small", {}, where));
    item.addEventListener("click", () => open(i));
    return item;
  }));
  if (!shown.list.length) place.append(element("li", { class: "empty" }, "No stored trajectory is like this."));
  open(0);
}

function open(index) {
  shown.episode = index;
  shown.step = 0;
  [...document.getElementById("episodes").children].forEach((item, i) => item.setAttribute("aria-selected", String(i === index)));
  episode();
}

const reward = (value) => (value === null ? "not scored" : format(value, "number"));

function episode() {
  const place = document.getElementById("episode");
  const t = shown.list[shown.episode];
  place.hidden = !t;
  if (!t) return;
  const facts = `${t.task_type}, ${t.task_id}, group ${t.group}, seed ${t.seed}, sampled by the ${t.policy} of update ${t.update}, ${format(t.seconds, "number")} s`;
  const end = element("span", { class: t.success ? "good" : "bad" }, `${t.termination}, outcome ${reward(t.outcome)}`);
  place.replaceChildren(
    element("h3", {}, t.task || t.task_id), element("p", { class: "facts" }, facts, element("br"), end),
    ...(t.steps.length ? [bars(t), stepper(t), ...step(t.steps[shown.step])] : [element("p", {}, "This episode has no steps.")]),
  );
}

function go(to) {
  const t = shown.list[shown.episode];
  if (!t || to < 0 || to >= t.steps.length) return;
  shown.step = to;
  episode();
  document.getElementById("episodes").focus({ preventScroll: true }); // the button that had it is gone
}

// The dense reward of each step, up from or down to a common zero; a red foot marks an invalid action.
function bars(t) {
  const values = t.steps.map((s) => s.dense_reward || 0);
  const top = Math.max(0, ...values), bottom = Math.min(0, ...values), span = top - bottom || 1;
  return element("div", { class: "bars", role: "group", "aria-label": "Dense reward of each step" }, ...t.steps.map((s, i) => {
    const bar = element("i");
    const value = values[i];
    bar.style.bottom = `${(100 * (Math.min(value, 0) - bottom)) / span}%`;
    bar.style.height = `max(1px, ${(100 * Math.abs(value)) / span}%)`;
    const button = element("button", {
      "aria-pressed": String(i === shown.step), title: `step ${i + 1}, dense reward ${reward(s.dense_reward)}`,
      class: s.well_formed && s.admissible ? "" : "invalid",
    }, bar);
    button.addEventListener("click", () => go(i));
    return button;
  }));
}

function stepper(t) {
  const button = (text, to) => {
    const made = element("button", {}, text);
    made.disabled = to < 0 || to >= t.steps.length;
    made.addEventListener("click", () => go(to));
    return made;
  };
  return element("div", { class: "stepper" },
    button("← back", shown.step - 1), button("next →", shown.step + 1), `step ${shown.step + 1} of ${t.steps.length}`);
}

function step(s) {
  const block = (title, text, name = "") => [element("h4", {}, title), element("pre", { class: name }, text === "" ? "(empty)" : text)];
  const flag = (yes, text, no) => element("span", { class: yes ? "good" : "bad" }, yes ? `✓ ${text}` : `✗ ${no}`);
  return [
    ...block("Observation", s.observation), ...block("Response", s.response), ...block("Action", s.action, "action"),
    element("div", { class: "flags" },
      flag(s.well_formed, "well formed", "not well formed"), flag(s.admissible, "admissible", "not admissible"),
      element("span", {}, `dense reward ${reward(s.dense_reward)}`), element("span", {}, `outcome reward ${reward(s.outcome_reward)}`)),
  ];
}

if (DATA.trajectories.length) {
  document.getElementById("trajectories").hidden = false;
  document.getElementById("trajectories").addEventListener("keydown", (event) => {
    if (event.target.tagName === "SELECT") return;
    if (event.key === "ArrowRight") go(shown.step + 1);
    else if (event.key === "ArrowLeft") go(shown.step - 1);
    else if (event.key === "ArrowDown" && shown.episode + 1 < shown.list.length) open(shown.episode + 1);
    else if (event.key === "ArrowUp" && shown.episode > 0) open(shown.episode - 1);
    else return;
    event.preventDefault();
  });
  filter();
}
