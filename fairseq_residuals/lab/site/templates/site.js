"use strict";
const byId = (id) => document.getElementById(id);
const escaped = (text) => text.replace(/[&<>]/g, (c) => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"}[c]));

/* A form's fields live in the address after #, so that a filtered list or a pair can be sent to someone. */
function keepInAddress(form, show) {
  const read = () => {
    const fields = new URLSearchParams(location.hash.slice(1));
    for (const field of form.elements) if (fields.has(field.name)) field.value = fields.get(field.name);
    show();
  };
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const set = [...new FormData(form)].filter(([, value]) => value);
    history.replaceState(null, "", "#" + new URLSearchParams(set));
    show();
  });
  addEventListener("hashchange", read);
  read();
}

if (byId("filters")) keepInAddress(byId("filters"), () => {
  let count = 0;
  for (const row of byId("wirings").tBodies[0].rows) {
    const fits = [...new FormData(byId("filters"))].every(([name, value]) => !value ||
      (name === "text" ? (row.textContent + row.dataset.text).toLowerCase().includes(value.toLowerCase())
        : row.dataset[name] === value));
    row.hidden = !fits;
    count += fits;
  }
  byId("count").textContent = count;
});

/* Lines of a and b in order; what both have stands in one row (the longest common subsequence). */
function diff(a, b) {
  const best = Array.from({length: a.length + 1}, () => new Array(b.length + 1).fill(0));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
  const rows = [];
  for (let i = 0, j = 0; i < a.length || j < b.length;) {
    if (i < a.length && j < b.length && a[i] === b[j]) rows.push(["same", a[i++], b[j++]]);
    else if (j >= b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) rows.push(["only", a[i++], ""]);
    else rows.push(["only", "", b[j++]]);
  }
  return rows.map(([kind, left, right]) =>
    `<tr class="${kind}"><td><pre>${escaped(left)}</pre></td><td><pre>${escaped(right)}</pre></td></tr>`).join("");
}

if (byId("pair")) {
  if (!location.hash) location.hash = "a=pre_ln&b=b2t";
  keepInAddress(byId("pair"), () => {
    const [a, b] = ["a", "b"].map((side) => WIRINGS[byId("pair").elements[side].value]);
    byId("schemes").innerHTML = [a, b].map((w) =>
      `<section><h2><a href="wiring/${w.name}.html">${escaped(w.title)}</a></h2>
       <p>${escaped(w.sentence)}</p><div class="wide">${w.scheme}</div></section>`).join("");
    byId("lines").innerHTML = diff(a.equations, b.equations);
    byId("code").innerHTML = diff(a.listing.split("\n"), b.listing.split("\n"));
  });
}

for (const block of document.querySelectorAll(".copy")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(block.querySelector("pre").textContent);
    button.textContent = "Copied";
  });
  block.prepend(button);
}
