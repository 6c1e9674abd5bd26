// The field that explains a log (templates/explain_field.html): paste it, drop its files, or type a
// message. explain.js says what it means, and explain_data.js has the rules, the messages, four
// examples and the words of Chinese pages.

const EXPLAIN_DATA = new URL("explain_data.js", document.currentScript.src);
const SITE = new URL("../", EXPLAIN_DATA);
const IN_CHINESE = document.documentElement.lang.startsWith("zh");
const PHONE = 576; // pixels
let explainLoaded;

/** These words of ours in the language of the page, with values in their gaps. */
function say(words, values = {}) {
  const said = (IN_CHINESE && window.EXPLAIN?.words[words]) || words;
  return said.replaceAll(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Load the data when it is first needed, as a script: a page without a server cannot fetch. */
function explainReady() {
  explainLoaded ??= new Promise((resolve, reject) => {
    const script = element("script", { src: EXPLAIN_DATA, onload: resolve, onerror: reject });
    document.head.append(script);
  }).then(() => Explain.load(window.EXPLAIN.rules, window.EXPLAIN.entries));
  return explainLoaded;
}

document.addEventListener("DOMContentLoaded", () => {
  const box = document.querySelector(".explain");
  if (!box) return;
  const find = (words) => box.querySelector(words);
  const field = find("textarea");
  const result = find(".explain-result");
  const link = find(".explain-link");

  let asked = 0;
  const show = async (files) => {
    const number = ++asked;
    await explainReady();
    const { entries } = window.EXPLAIN;
    const text = files.map((file) => file.text).join("\n").trim();
    link.hidden = !text || text.length > 1500 || files.length > 1;
    find(".explain-examples").open = !text;
    const empty = element("p", { textContent: say("Paste a log first, or choose an example.") });
    const answered = text ? await answer(files, entries) : [empty];
    if (number !== asked) return; // somebody has asked for another one since
    result.replaceChildren(...answered);
    result.scrollIntoView({ block: "nearest" });
  };
  const showField = () => {
    find(".explain-names").textContent = "";
    show([{ name: "log", text: field.value }]);
  };
  const read = async (list) => {
    const files = [];
    for (const [name, file] of list) files.push({ name, text: await decode(file) });
    field.value = files.length === 1 && files[0].text.length < 1e6 ? files[0].text : "";
    await show(files);
    find(".explain-names").textContent = say("Read: {names}", { names: namesOf(files) });
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
    link.textContent = say("The address has it now");
  });
  for (const button of box.querySelectorAll("[data-example]"))
    button.addEventListener("click", async () => {
      await explainReady();
      field.value = window.EXPLAIN.examples[button.dataset.example];
      showField();
    });
  const query = new URLSearchParams(location.search).get("q");
  if (query) {
    field.value = query;
    showField();
  }
});

const MOST_NAMES = 4;

function namesOf(files) {
  const names = files.slice(0, MOST_NAMES).map((file) => file.name);
  return [...names, ...(files.length > MOST_NAMES ? ["..."] : [])].join(", ");
}

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

/** What is shown for a log, or for words that are no log: what to do first, then the evidence. */
async function answer(files, entries) {
  const found = Explain.explain(files);
  const text = files.map((file) => file.text).join("\n");
  const short = text.length < 400 && text.trim().split("\n").length < 4;
  if (short && !found.page && !found.also.length) return entriesWith(text, entries);
  const list = element("dl", {});
  const row = (words, ...content) =>
    list.append(element("dt", { textContent: say(words) }), element("dd", {}, ...content));
  const { others } = found;
  row("What happened", english(ended(found.what)));
  row("Root cause", english(found.cause));
  row("Next", english(found.next));
  row("This means", english([found.follows, found.means].filter(Boolean).join(" ")));
  const notes = found.also.map(([file, number, sentence, page]) =>
    element("p", {}, placeIn(file, number), english(` ${sentence} `), page ? entryLink(page, say("Its entry")) : ""),
  );
  if (notes.length) row("Also", ...notes);
  if (found.sure) row("Certain?", english(ended([found.sure, ...others.slice(0, 2)].join(say("; it could also be: ")))));
  if (found.page) row("Read", entryLink(found.page, titleOf(found.page, entries)));
  if (found.states.length) row("Ranks", lanes(found));
  return [list, ...tellingLines(found.telling)];
}

// Code in what a rule says, and a name that has a page. Sentences of messages have marks of their own.
const CODE = [
  "dmesg \\| grep -i oom",
  "py-spy dump(?: --pid PID)?",
  "(?<![\\w.])[A-Z]+_[A-Z_]+(?:=\\w+)?",
  "(?<![\\w-])--[a-z][\\w-]+",
  "[\\w.]+\\(\\)",
].join("|");
const MARKS_OF_TEXT = new RegExp(`\`([^\`]+)\`|\\[([^\\]]*)\\]\\((docs/[\\w/]+\\.md(?:#[\\w-]+)?)\\)|(${CODE})|(flight recorder)`, "g");
const FLIGHT_RECORDER = "docs/nccl_timeout.md#the-flight-recorder-and-torchfrtrace";

/** A sentence of explain.js, with its code and its links. A screen reader on a Chinese page must know
    its language. */
function english(words) {
  const span = element("span", { lang: "en" });
  let rest = words.replaceAll(".:", ":"); // a name that ends with a full stop
  for (const [plain, marked] of Object.entries(window.EXPLAIN.marked)) rest = rest.replace(plain, () => marked);
  let end = 0;
  for (const found of rest.matchAll(MARKS_OF_TEXT)) {
    const [all, code, name, page, command, recorder] = found;
    span.append(rest.slice(end, found.index));
    if (page) span.append(entryLink(page, name));
    else if (recorder) span.append(entryLink(FLIGHT_RECORDER, recorder));
    else span.append(element("code", { textContent: code ?? command }));
    end = found.index + all.length;
  }
  span.append(rest.slice(end));
  return span;
}

/** These words as a sentence. */
const ended = (words) => (!words || /[.!?:]$/.test(words) ? words : `${words}.`);

function placeIn(file, number) {
  return element("code", { textContent: `${file}:${number}` });
}

/** On a phone they are folded, so that the rest fits. */
function tellingLines(telling) {
  if (!telling.length) return [];
  const title = element("summary", { textContent: say("Telling lines ({count})", { count: telling.length }) });
  const lines = telling.map(([file, number, words]) =>
    element("p", {}, placeIn(file, number), " ", element("q", { lang: "en", textContent: words })),
  );
  return [element("details", { open: innerWidth > PHONE }, title, ...lines)];
}

/** One lane per rank: until when it gave a sign of life. Ranks that did the same have one text. */
function lanes(found) {
  const table = element("div", { className: "explain-lanes" });
  if (found.life) table.append(axis(found.life));
  for (const [ranks, state] of found.states) {
    const group = element("div", { className: "lane-group" });
    // A lane for each of a thousand ranks would hide the others, so a large group has one.
    const each = ranks.length <= MOST_LANES ? ranks.map((rank) => [rank]) : [ranks];
    for (const some of each) group.append(lane(found, some));
    group.append(element("p", { lang: "en", textContent: state }));
    table.append(group);
  }
  if (found.life) table.append(element("small", { textContent: say(found.life.clocked ? BARS : MARKS) }));
  return table;
}

const MOST_LANES = 16;
const BARS = "Each bar ends when the rank printed its last line.";
const MARKS =
  "Each mark shows where in the log the rank printed its last line. " +
  "These lines have no times, so the distances say nothing about how long a rank waited.";

function lane(found, ranks) {
  const guilty = (found.ranks ?? []).some((rank) => ranks.includes(rank));
  const label = element("b", { textContent: Explain.name(ranks) + (guilty ? ` ${say("(cause)")}` : "") });
  const lane = element("div", { className: guilty ? "lane cause" : "lane" }, label);
  const { life } = found;
  if (!life) return lane;
  const at = (line) => (life.clocked ? line.time : line.position);
  const lines = ranks.map((rank) => life.ends[rank]).filter(Boolean);
  const last = lines.length ? lines.reduce((a, b) => (at(b) > at(a) ? b : a)) : null;
  const track = element("span", { className: "track", ariaHidden: true });
  if (last) {
    // Lines of a log without times are no durations: a mark, and no bar from the beginning.
    const bar = element("span", { className: life.clocked ? "bar" : "bar mark" });
    bar.style.setProperty("--life", (at(last) - life.low) / (life.high - life.low));
    track.append(bar);
  }
  lane.append(track, element("small", { textContent: untilWhen(life, last) }));
  return lane;
}

function untilWhen({ clocked }, last) {
  if (!last) return say("no line of its own");
  return clocked ? say("until {time}", { time: clock(last.time) }) : say("line {line}", { line: last.number });
}

/** From when to when the lanes go; without clock times they go by the lines' order. */
function axis({ clocked, low, high }) {
  const ends = clocked ? [clock(low), clock(high)] : [say("first line"), say("last line")];
  const scale = element("div", { className: "lane axis" }, element("b", { textContent: say("Last sign of life") }));
  scale.append(element("span", {}, ...ends.map((words) => element("small", { textContent: words }))));
  return scale;
}

function clock(seconds) {
  const parts = [seconds / 3600, (seconds / 60) % 60, seconds % 60];
  return parts.map((part) => String(Math.floor(part)).padStart(2, "0")).join(":");
}

function entryLink(page, words) {
  return element("a", { href: new URL(page.replace(".md", ".html"), SITE), textContent: words });
}

// Pages that are no page of messages.
const PAGES = {
  debugging: "Debugging: find where a run hangs",
  nccl_timeout: "NCCL timeout: from the evidence to the cause",
  memory: "CUDA out of memory: what training keeps on a GPU",
};

function titleOf(page, entries) {
  const name = page.replace(/^docs\//, "").replace(/\.md.*/, "");
  return entries.find((entry) => entry.page === page)?.title ?? PAGES[name] ?? name;
}

const MOST_LETTERS = 200; // of a search
const MOST_PAGES = 5;

// What people write about a failure without its message, and the entries that they look for.
const TOPICS = [
  [/\b(?:nans?|infs?|infinite|infinity|diverge[sd]?|diverging)\b|发散/i, ["docs/messages_training.md#the-loss-is-nan-or-infinite"]],
  [
    /\boom\b|\bout of memory\b|显存不足|显存不够|内存不足/i,
    [
      "docs/messages_devices.md#the-model-and-the-batch-need-more-memory-than-the-gpu-has",
      "docs/messages_devices.md#the-host-ran-out-of-memory",
      "docs/memory.md",
    ],
  ],
  [/\bports?\b|\b29500\b|端口/i, ["docs/messages.md#another-process-has-the-port"]],
];
const HANGS = /\b(?:hangs?|hung|hanging|stuck|freezes?|freezing|froze|frozen|deadlock\w*|(?:wait|block)(?:s|ed|ing)?)\b|卡|挂起|死锁|没有反应/i;

/** Links to the entries with a message that the text has, or else to those of its topic and to
    those that have all typed words in their heading, their messages or their meaning. If none has
    the module that stands before the name of an error, the name alone counts. */
function entriesWith(text, entries) {
  const known = Explain.bestFirst(Explain.messagesOf(text), new Set());
  if (known.length) return linksTo(new Map(known.map(([rule]) => [rule.page, rule.title])));
  const about = topicsOf(text, entries);
  const withoutModules = text.replaceAll(/\b(?:\w+\.)+(?=\w)/g, "");
  const having = [text, withoutModules].map((words) => entriesThatHave(words, entries)).find((found) => found.size);
  return having ? linksTo(new Map([...about, ...having])) : nothingHas(text, about);
}

/** -> Map(page -> title) */
function topicsOf(text, entries) {
  const pages = TOPICS.filter(([words]) => words.test(text)).flatMap(([, some]) => some);
  return new Map(pages.map((page) => [page, titleOf(page, entries)]));
}

/** -> Map(page -> title) */
function entriesThatHave(text, entries) {
  const words = text.toLowerCase().match(/[a-z_]{2,}|\d{2,}|[\u4e00-\u9fff]+/g) ?? [];
  // A short word is not a part of another one: "port" is not in "import".
  const patterns = words.map((word) => new RegExp(word.length < 5 && !HAN_ONLY.test(word) ? `(?<![a-z])${word}(?![a-z])` : word));
  const titles = new Map();
  for (const entry of entries) {
    const all = [entry.title, entry.meaning, ...entry.messages.map(([message]) => message)].join(" ").toLowerCase();
    if (words.length && patterns.every((word) => word.test(all))) titles.set(entry.page, entry.title);
  }
  return titles;
}

const HAN_ONLY = /^[\u4e00-\u9fff]/;
const listOf = (links) => element("ul", {}, ...links.map((link) => element("li", {}, link)));
const paragraph = (words) => element("p", { textContent: words });

function linksTo(titles) {
  return [paragraph(say("Entries with these words:")), listOf(entryLinks(titles))];
}

/** The entries are English, which a Chinese page says. */
function entryLinks(titles) {
  const links = [...titles].slice(0, 12);
  return links.map(([page, title]) => entryLink(page, IN_CHINESE ? `${title}（英文）` : title));
}

/** Most words that no message has are a question: for the search of the site, or about a hang. */
async function nothingHas(text, about) {
  const query = text.trim().replaceAll(/\s+/g, " ").slice(0, MOST_LETTERS);
  const found = await loadSearch().then(
    () => (areMostlyKnown(query) ? Search.rank(query, MOST_PAGES) : []),
    () => [],
  );
  const hangs = HANGS.test(query);
  if (!found.length && !about.size && !hangs)
    return [paragraph(say("No message and no page here has these words. Paste lines that the failed run printed, such as the end of a traceback."))];
  const shown = [paragraph(say("No message here has these words."))];
  if (about.size) shown.push(paragraph(say("Entries about this failure:")), listOf(entryLinks(about)));
  if (hangs) {
    const page = IN_CHINESE ? "docs/messages_hangs.zh.md" : "docs/messages_hangs.md";
    shown.push(
      paragraph(say("If the run hangs and prints nothing:")),
      listOf([
        entryLink("docs/debugging.md", say("Find where a run hangs")),
        entryLink(page, say("Ranks that wait and ranks that are lost")),
      ]),
    );
  }
  const others = found.filter(({ page, anchor }) => !about.has(`${page}.md${anchor}`));
  if (others.length) {
    const isEntry = ({ page, anchor }) => page.startsWith("docs/messages") && anchor !== "";
    const all = new URL("search.html", SITE);
    all.search = new URLSearchParams({ q: query });
    shown.push(
      paragraph(say("Pages of this site about these words:")),
      listOf([
        ...[...others.filter(isEntry), ...others.filter((one) => !isEntry(one))].map((one) => Search.linkTo(one)),
        element("a", { href: all, textContent: say("All that the search finds") }),
      ]),
    );
  }
  return shown;
}

/** Does the site speak of more than half of these words? A single one in common says nothing. */
function areMostlyKnown(query) {
  const words = [...new Set(wordsOf(query))];
  const known = words.filter((word) => pagesWith(word, Search.index).size > 1 || headings().some(({ own }) => own.includes(word)));
  return known.length > words.length / 2;
}
