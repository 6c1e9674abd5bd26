// The field above the messages: paste a log, drop its files, or type a message.
// explain.js says what it means, and explain_data.js has the rules, the messages and four examples.

const EXAMPLES = ["one rank is behind (NCCL)", "a rank was killed (Slurm)", "unused parameters", "a full /dev/shm"];
const EXPLAIN_DATA = new URL("explain_data.js", document.currentScript.src);
let explainLoaded;

/** Load the data when it is first needed, as a script: a page without a server cannot fetch. */
function explainReady() {
  explainLoaded ??= new Promise((resolve, reject) => {
    const script = element("script", { src: EXPLAIN_DATA, onload: resolve, onerror: reject });
    document.head.append(script);
  }).then(() => Explain.load(window.EXPLAIN.rules, window.EXPLAIN.entries));
  return explainLoaded;
}

document.addEventListener("DOMContentLoaded", () => {
  const box = element("section", { className: "explain" });
  box.setAttribute("aria-labelledby", "explain-title");
  box.innerHTML = `
    <h2 id="explain-title">Paste the log of a failed run</h2>
    <p>Give the output of all ranks, or one message. You can also drop files here. Nothing is sent
      anywhere: your browser reads the text itself.</p>
    <label for="explain-text">Log, or words of a message</label>
    <textarea id="explain-text" rows="6" spellcheck="false"></textarea>
    <p class="explain-buttons">
      <button type="button" class="explain-go">Explain</button>
      <label class="explain-files">Or files: <input type="file" multiple></label>
      <button type="button" class="explain-link" hidden>Link to this</button>
    </p>
    <p class="explain-examples">Examples: </p>
    <div class="explain-result" role="status"></div>`;
  const find = (words) => box.querySelector(words);
  const field = find("textarea");
  const result = find(".explain-result");
  const link = find(".explain-link");
  document.querySelector(".bd-article h1").closest("section").querySelector(":scope > section").before(box);

  const show = async (files) => {
    await explainReady();
    const { entries } = window.EXPLAIN;
    const text = files.map((file) => file.text).join("\n").trim();
    link.hidden = !text || text.length > 1500 || files.length > 1;
    result.replaceChildren(...(text ? answer(files, entries) : []));
  };
  const showField = () => show([{ name: "log", text: field.value }]);
  const read = async (list) => {
    const files = [];
    for (const [name, file] of list) files.push({ name, text: await decode(file) });
    field.value = files.length === 1 && files[0].text.length < 1e6 ? files[0].text : "";
    show(files);
  };
  find(".explain-go").addEventListener("click", showField);
  field.addEventListener("paste", () => setTimeout(showField));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) showField();
  });
  find("input").addEventListener("change", (event) => read([...event.target.files].map((file) => [file.name, file])));
  box.addEventListener("dragover", (event) => {
    if (event.dataTransfer.types.includes("Files")) event.preventDefault();
  });
  box.addEventListener("drop", async (event) => {
    if (!event.dataTransfer.types.includes("Files")) return; // dragged words go into the field
    event.preventDefault();
    const dropped = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
    if (dropped.length) read(await filesBelow(dropped));
  });
  link.addEventListener("click", () => {
    const address = new URL(location.href);
    address.search = new URLSearchParams({ q: field.value.trim() });
    address.hash = "";
    history.replaceState(null, "", address);
    navigator.clipboard?.writeText(address.href);
    link.textContent = "The address has it now";
  });
  for (const words of EXAMPLES) {
    const button = element("button", { type: "button", textContent: words });
    button.addEventListener("click", async () => {
      await explainReady();
      field.value = window.EXPLAIN.examples[words];
      showField();
    });
    find(".explain-examples").append(button, " ");
  }
  const asked = new URLSearchParams(location.search).get("q");
  if (asked) {
    field.value = asked;
    showField();
  }
});

function element(tag, values = {}, ...children) {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children);
  return made;
}

/** All files of dropped files and folders, such as torchrun's --log-dir -> [[path, file]].

    The folder's names are kept: those of torchrun say which rank wrote a file. */
async function filesBelow(dropped) {
  const found = [];
  for (const one of dropped) {
    if (one.isFile) {
      const file = await new Promise((resolve, reject) => one.file(resolve, reject));
      if (!file.name.endsWith(".json")) found.push([one.fullPath.slice(1), file]);
      continue;
    }
    const reader = one.createReader();
    let some;
    do {
      // A reader gives at most a hundred names at a time, and none at the end.
      some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      found.push(...(await filesBelow(some)));
    } while (some.length);
  }
  return found.sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Windows PowerShell writes UTF-16. */
async function decode(file) {
  const bytes = await file.arrayBuffer();
  const start = [...new Uint8Array(bytes.slice(0, 2))].join();
  const encoding = { "255,254": "utf-16le", "254,255": "utf-16be" }[start] ?? "utf-8";
  return new TextDecoder(encoding).decode(bytes);
}

/** What is shown for a log, or for words that are no log. */
function answer(files, entries) {
  const found = Explain.explain(files);
  const text = files.map((file) => file.text).join("\n");
  const short = text.length < 400 && text.trim().split("\n").length < 4;
  if (short && !found.page && !found.also.length) return entriesWith(text, entries);
  const row = (name, ...content) => [element("dt", { textContent: name }), element("dd", {}, ...content)];
  const place = ([file, number]) => element("code", { textContent: `${file}:${number}` });
  const list = element("dl", {});
  list.append(...row("What happened", found.what), ...row("Root cause", found.cause));
  if (found.states.length) list.append(...row("Ranks", lanes(found)));
  if (found.telling.length) list.append(element("dt", { textContent: "Telling lines" }));
  for (const line of found.telling)
    list.append(element("dd", {}, place(line), " ", element("q", { textContent: line[2] })));
  list.append(...row("This means", [found.follows, found.means].filter(Boolean).join(" ")));
  for (const [file, number, sentence, page] of found.also)
    list.append(...row("Also", place([file, number]), ` ${sentence} `, ...(page ? [entryLink(page, "Its entry")] : [])));
  list.append(...row("Next", found.next));
  if (found.sure) list.append(...row("Certain?", [found.sure, ...found.others.slice(0, 2)].join("; it could also be: ")));
  if (found.page) list.append(...row("Read", entryLink(found.page, titleOf(found.page, entries))));
  return [list];
}

/** One lane per rank: how long it gave a sign of life. Ranks that did the same have one text. */
function lanes(found) {
  const table = element("div", { className: "explain-lanes" });
  if (found.life) table.append(axis(found.life));
  for (const [ranks, state] of found.states) {
    const group = element("div", { className: "lane-group" });
    // A lane for each of a thousand ranks would hide the others, so a large group has one.
    const each = ranks.length <= MOST_LANES ? ranks.map((rank) => [rank]) : [ranks];
    for (const some of each) group.append(lane(found, some));
    group.append(element("p", { textContent: state }));
    table.append(group);
  }
  const caption = "The bars show how long each rank gave a sign of life.";
  table.append(element("small", { textContent: caption }));
  return table;
}

const MOST_LANES = 16;

function lane(found, ranks) {
  const guilty = (found.ranks ?? []).some((rank) => ranks.includes(rank));
  const label = element("b", { textContent: Explain.name(ranks) + (guilty ? " (cause)" : "") });
  const lane = element("div", { className: guilty ? "lane cause" : "lane" }, label);
  const { life } = found;
  if (!life) return lane;
  const at = (line) => (life.clocked ? line.time : line.position);
  const lines = ranks.map((rank) => life.ends[rank]).filter(Boolean);
  const last = lines.length ? lines.reduce((a, b) => (at(b) > at(a) ? b : a)) : null;
  const bar = element("span", { className: "bar" });
  bar.style.setProperty("--life", last ? (at(last) - life.low) / (life.high - life.low) : 0);
  let until = "no line of its own";
  if (last) until = life.clocked ? `until ${clock(last.time)}` : `until line ${last.number}`;
  lane.append(element("span", { className: "track", ariaHidden: true }, bar), element("small", { textContent: until }));
  return lane;
}

/** From when to when the lanes go; without clock times they go by the lines' order. */
function axis({ clocked, low, high }) {
  const ends = clocked ? [clock(low), clock(high)] : ["first line", "last line"];
  const scale = element("div", { className: "lane axis" }, element("b", { textContent: "Last sign of life" }));
  scale.append(element("span", {}, ...ends.map((words) => element("small", { textContent: words }))));
  return scale;
}

function clock(seconds) {
  const parts = [seconds / 3600, (seconds / 60) % 60, seconds % 60];
  return parts.map((part) => String(Math.floor(part)).padStart(2, "0")).join(":");
}

function entryLink(page, words) {
  return element("a", { href: page.replace(/^docs\//, "").replace(".md", ".html"), textContent: words });
}

// Pages that are no page of messages.
const PAGES = {
  debugging: "Debugging: find where a run hangs",
  nccl_timeout: "NCCL timeout: from the evidence to the cause",
};

function titleOf(page, entries) {
  const name = page.replace(/^docs\//, "").replace(/\.md.*/, "");
  return entries.find((entry) => entry.page === page)?.title ?? PAGES[name] ?? name;
}

/** Links to the entries that have all typed words in their heading, their messages or their meaning.
    If none has the module that stands before the name of an error, the name alone counts. */
function entriesWith(text, entries) {
  const withoutModules = text.replaceAll(/\b(?:\w+\.)+(?=\w)/g, "");
  return linksTo(text, entries) ?? linksTo(withoutModules, entries) ?? nothingHas();
}

function linksTo(text, entries) {
  const words = text.toLowerCase().match(/[a-z_]{2,}|\d{2,}/g) ?? [];
  const titles = new Map();
  for (const entry of entries) {
    const all = [entry.title, entry.meaning, ...entry.messages.map(([message]) => message)].join(" ").toLowerCase();
    if (words.length && words.every((word) => all.includes(word))) titles.set(entry.page, entry.title);
  }
  const links = [...titles].slice(0, 12).map(([page, title]) => element("li", {}, entryLink(page, title)));
  if (!links.length) return null;
  return [element("p", { textContent: "Entries with these words:" }), element("ul", {}, ...links)];
}

function nothingHas() {
  const nothing = element("p", { textContent: "No message here has these words. " });
  nothing.append(element("a", { href: "debugging.html", textContent: "Debugging" }), " says how to find the cause.");
  return [nothing];
}
