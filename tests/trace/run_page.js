// Runs the script of a trace page on a document of a few lines, presses keys, and prints what the page then shows.
"use strict";
const { readFileSync } = require("fs");
const [file, ...keys] = process.argv.slice(2);
const html = readFileSync(file, "utf8");
const script = html.match(/<script>\n([\s\S]*)\n<\/script>/)[1];
const data = html.match(/id="data">([\s\S]*?)<\/script>/)[1];

class Element {
  constructor() { this.innerHTML = ""; this.textContent = ""; this.dataset = {}; this.className = ""; }
  querySelectorAll() {
    return Array.from(this.innerHTML.matchAll(/<span data-step="(\d+)"/g), (match) => {
      const span = new Element();
      span.dataset.step = match[1];
      return span;
    });
  }
  scrollIntoView() {}
}

const elements = {};
const listeners = [];
const page = {
  getElementById(id) {
    if (!html.includes(`id="${id}"`)) throw new Error(`the page has no element '${id}'`);
    return (elements[id] ??= new Element());
  },
  querySelectorAll: () => [],
  addEventListener: (_, listener) => listeners.push(listener),
};
page.getElementById("data").textContent = data;
const began = Date.now();
new Function("document", script)(page);
for (const key of keys) for (const listener of listeners) listener({ key, preventDefault() {} });
const shown = Object.fromEntries(["answer", "tree", "words", "legend", "facts"].map((id) => [id, elements[id].innerHTML]));
const unescape = (text) => text.replace(/&#(\d+);/g, (_, code) => String.fromCharCode(code));
console.log(JSON.stringify({ ...shown, place: unescape(elements.place.textContent), milliseconds: Date.now() - began }));
