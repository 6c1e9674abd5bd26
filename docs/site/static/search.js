// The search of the site, in place of Sphinx's: pages whose headings or quoted messages have the
// reader's words come first, a rare word counts more than a frequent one, a page need not have all
// of them, and a result leads to the section. hooks.py cuts the pages into words as splitQuery cuts
// queries. search_page.js and search_dialog.js show what is found; nothing here touches the page.

/** searchindex.js hands its index to this object. */
var Search = {
  /** Of a page: [[id of a section, its heading, its text]]. See textOf. */
  texts: {},
  setIndex(index) {
    Search.index = index;
  },
};

/** Words, "allreduce" as well as "all" and "reduce", and each two neighbours of a run of Han characters. */
var splitQuery = (query) => {
  const text = query.toLowerCase().replaceAll(/\bexit code/g, "exit-code");
  const joined = text.match(/[a-z0-9]+(?:[-_][a-z0-9]+)+/g) ?? [];
  const runs = text.match(/[\u4e00-\u9fff]{2,}/g) ?? [];
  return [
    ...(text.match(/[a-z0-9]+/g) ?? []),
    ...joined.map((word) => word.replaceAll(/[-_]/g, "")),
    ...runs.flatMap((run) => [...run].slice(1).map((after, i) => run[i] + after)),
  ];
};

/** What people type for a page that does not say it so: counts like a heading of that page, or of the section after #.
    A semicolon ends such a heading. */
const ALSO = {
  "docs/doctor": "is my script correct right wrong bug check doctor 脚本诊断 写对",
  "docs/speed": "speed why is my script slow slower than one gpu low gpu utilization usage throughput 速度慢",
  "docs/reading_timings": "slow slower slowdown low utilization speedup no speedup not faster with 2 gpus than single one gpu scaling 训练变慢 速度慢 加速",
  "docs/eight_gpus": "low scaling efficiency bottleneck exposed communication",
  "docs/messages": "error exception 报错",
  "docs/messages#another-process-has-the-port": "address already in use port already used 29500 master_port 端口被占用",
  "docs/is_it_ddp": "nan loss memory leak memory grows cuda error late gpu driver too old sm_120 not compatible",
  "docs/around_the_ranks": "srun pytorchjob trainjob accelerate launch mpi ssh world size rank environment variables",
  "docs/host": "how many num_workers cpu cores ram shared memory docker shm pause between epochs dataloader stuck",
  "docs/memory": "oom; cuda oom; cuda out of memory 显存不足",
  "docs/messages_hangs.zh": "训练卡住 卡死 挂起 显存不足 端口被占用 超时",
  "docs/debugging": "my script hangs my training hangs hung stuck hang deadlock freeze frozen 训练卡住 卡死 死锁",
  "docs/adapt#one-rank-prints-and-saves": "print tqdm log several times many times only one process should print once per rank",
  "docs/adapt": "how to use multiple gpus in pytorch convert my script",
  "docs/amp": "fp16 bf16 half precision nan 混合精度",
  "docs/at_scale": "how many gpus do i need",
  "docs/checklist": "print once only on rank 0 review",
  "docs/batch_size_and_learning_rate": "how to choose batch size not converging loss not decreasing accuracy 学习率 损失不下降",
  "docs/checkpoints": "checkpoint checkpoints resume restart save load 保存模型 检查点",
  "docs/gradient_accumulation": "梯度累积",
  "docs/questions": "different results on one gpu and two",
  "04_ddp_torchrun/README": "torchrun",
  "04_ddp_torchrun/README.zh": "torchrun 启动",
  "docs/glossary": "what is rank",
  "docs/glossary.zh": "rank 是什么; 主节点; 后端; 分桶; 学习率缩放",
  "docs/messages_hangs#a-rank-was-killed": "sigkill signal 9 exit code killed oom kill",
  "docs/nccl_timeout": "nccl watchdog timeout 超时",
  "01_baseline/README.zh": "单卡 一个 gpu",
  "notebooks/03_samplers_and_seeds": "set_epoch sampler distributedsampler sampler same order every epoch batch norm batchnorm 采样器",
  "docs/uneven_inputs": "join uneven last batch",
  "03_ddp_spawn/README": "multi gpu one machine",
  "02_dp/README": "difference between dataparallel and ddp; difference between dataparalell and distributeddataparallel",
  "03_ddp_spawn/README.zh": "单机多卡 多卡 同步 梯度同步",
  "05_multinode/README": "multi node several machines",
  "05_multinode/README.zh": "多机多卡; 断点续训",
  "README.zh": "分布式训练 分布式数据并行 镜像 离线",
  "docs/teaching": "teach course class students homework grading lecture workshop",
  "exercises/README": "practice practise exercise quiz 练习",
};

/** Words of a question that the index has, but that say nothing. */
const MORE_STOPWORDS = new Set(["many", "much", "time", "times", "use", "using", "get", "want", "need"]);

/** These exit codes mean a signal: its name is what the pages have. */
const KILLED = /\bexit ?code[\s:(]*(?:-9|137)\b/gi;

/** What a Chinese page counts for somebody who searches without a Han character. */
const OTHER_LANGUAGE = 0.4;
/** What a page for programs counts: it names everything once. */
const FOR_ASSISTANTS = 0.5;
const HAN = /[\u4e00-\u9fff]/;

/** What a Chinese page counts for a word that it has so often: a single mention is half of one. */
const shareOfCount = (count) => Math.min(1.5, 0.5 + 0.25 * Math.log2(count));

/** Which pages have a word: Map(page -> 1, or less where it is a part of a longer word). Sphinx
 * leaves out of a page's text what one of its headings has. */
function pagesWith(word, { terms, titleterms, docnames }) {
  const found = new Map();
  for (const [term, pages] of [terms, titleterms].flatMap(Object.entries)) {
    const share = term === word ? 1 : word.length > 3 && term.includes(word) ? 0.5 : 0;
    if (share)
      for (const page of [pages].flat()) found.set(page, Math.max(share, found.get(page) ?? 0));
  }
  if (HAN.test(word))
    for (const page of found.keys())
      if (docnames[page].endsWith(".zh")) found.set(page, shareOfCount(PLACES.counts[word]?.[docnames[page]] ?? 1));
  return found;
}

/** The reader's words as the index has them: without those that say nothing, and without endings. */
function wordsOf(text) {
  const stemmer = new Stemmer();
  const all = splitQuery(text);
  const saysNothing = (word) => stopwords.has(word) || MORE_STOPWORDS.has(word) || /^\d\d?$/.test(word);
  const telling = all.filter((word) => !saysNothing(word));
  return (telling.length ? telling : all).map((word) => stemmer.stemWord(word));
}

/** What counts as a heading: [[words, [[page, id]], full]]. A message of an entry counts fully only
    where it has all words; they are many, and one word in common says little. */
function headings() {
  if (headings.all) return headings.all;
  const { alltitles, docnames } = Search.index;
  const one = (words, places, more) => ({ words, places, ...more, own: wordsOf(words) });
  headings.all = Object.entries(alltitles).map(([words, places]) => one(words, places));
  for (const [place, words] of Object.entries(ALSO)) {
    const [page, id] = place.split("#");
    for (const some of words.split("; ")) headings.all.push(one(some, [[docnames.indexOf(page), id ?? null]], { isText: true }));
  }
  const titles = titlesOfSections();
  for (const [page, id, messages] of PLACES.messages) {
    const number = docnames.indexOf(page);
    const title = titles.get(`${number}#${id}`) ?? "";
    for (const message of messages) headings.all.push(one(`${title} ${message}`, [[number, id || null]], { isMessage: true }));
  }
  return headings.all;
}

function titlesOfSections() {
  const found = new Map();
  for (const [heading, places] of Object.entries(Search.index.alltitles))
    for (const [page, id] of places) if (id !== null) found.set(`${page}#${id}`, heading);
  return found;
}

/** Are these words somewhere in the others, one after the other? */
function inSequence(words, others) {
  return words.length > 1 && ` ${others.join(" ")} `.includes(` ${words.join(" ")} `);
}

/** The places that answer a query, best first: [{page, title, anchor, text}]. A term of the glossary is first,
    if it is the whole query and no page has it in its title. */
function rank(query, most = 20) {
  const { docnames, titles } = Search.index;
  const asked = wordsOf(query.replace(KILLED, "exit code sigkill killed"));
  const words = new Set(asked);
  if (!words.size) return [];
  const texts = new Map([...words].map((word) => [word, pagesWith(word, Search.index)]));
  const weight = (word) => Math.log(1 + docnames.length / (1 + texts.get(word).size));
  const total = (found) => [...found].reduce((sum, word) => sum + weight(word), 0);
  const all = total(words) || 1;
  const inText = docnames.map((_, page) =>
    [...texts].reduce((sum, [word, pages]) => sum + weight(word) * (pages.get(page) ?? 0), 0),
  );
  const sections = titlesOfSections();
  const best = new Map(); // page -> its best heading
  const shareOf = (page) => {
    if (docnames[page].endsWith("AGENTS")) return FOR_ASSISTANTS;
    return docnames[page].endsWith(".zh") && !HAN.test(query) ? OTHER_LANGUAGE : 1;
  };
  const typed = query.toLowerCase().trim();
  for (const { words: heading, places, isMessage, isText, own } of headings()) {
    const has = new Set(own);
    const shared = [...words].filter((word) => has.has(word));
    let share = total(shared) / all;
    if (isMessage && shared.length < words.size) share *= 0.6;
    if (!isMessage) share += (0.3 * shared.length) / has.size; // the shorter the better
    const exact = heading.toLowerCase().includes(typed) || (isMessage && inSequence(asked, own)) ? 0.5 : 0;
    for (const [page, id] of places) {
      if (page < 0) continue;
      const whole = id === null ? (share ? 0.6 : 0.01) : 0; // without such a heading: to the top
      const text = Math.max(inText[page], isText && !HAN.test(query) ? total(shared) : 0);
      const score = shareOf(page) * (text / all + 2 * share + exact + whole);
      if (score > (best.get(page)?.score ?? 0)) best.set(page, { page, id, score, byText: !share });
    }
  }
  const term = PLACES.terms[typed.replaceAll("_", " ")];
  if (term) {
    const page = docnames.indexOf(term[0]);
    const top = Math.max(...[...best.values()].map(({ score }) => score));
    const isTitle = [...best.values()].some((one) => one.score === top && titles[one.page].toLowerCase().includes(typed));
    if (!isTitle) best.set(page, { page, id: term[1], term: term[2], score: top + 0.1, byText: false });
  }
  const found = [...best.values()].sort((a, b) => b.score - a.score).slice(0, most);
  // Few pages are Chinese, so for them less is enough; but a single mention does not make a sixth result.
  const least = Math.max(0.5, (HAN.test(query) ? 0.15 : 0.3) * (found[0]?.score ?? 0));
  const enough = ({ score }, place) => score >= (HAN.test(query) && place >= 5 ? Math.max(least, 0.6) : least);
  return found.filter(enough).map(({ page, id, score, byText, term }) => {
    const name = docnames[page];
    const section = term ?? sections.get(`${page}#${id}`);
    const isOther = HAN.test(query) && !name.endsWith(".zh");
    return {
      page: name,
      title: [titles[page], section].filter(Boolean).join(" > ") + (isOther ? "（英文）" : ""),
      anchor: section ? `#${id}` : "",
      section: section ?? "",
      whole: titles[page] + (isOther ? "（英文）" : ""),
      byText,
      score,
    };
  });
}

/** A link to what was found, from any page. */
function linkTo({ page, title, anchor }) {
  const root = document.documentElement.dataset.content_root;
  const link = document.createElement("a");
  link.href = `${root}${page === "README" ? "index" : page}.html${anchor}`;
  link.textContent = title;
  return link;
}

// ---------------------------------------------------------------- what is shown of a page

const SEARCH_SCRIPT = document.currentScript.src;
const EXCERPT = 180; // letters

/** Load the text of a page when it is shown, as a script: a page without a server cannot fetch. */
function textOf(page) {
  return new Promise((resolve, reject) => {
    if (Search.texts[page]) return resolve(Search.texts[page]);
    const script = document.createElement("script");
    const onload = () => resolve(Search.texts[page]);
    Object.assign(script, { src: new URL(`search_texts/${page}.js`, SEARCH_SCRIPT), onload, onerror: reject });
    document.head.append(script);
  });
}

/** The words of a query, and how much each says: Map(word -> weight). A word of few pages says more. */
function weights(query) {
  if (weights.query !== query) {
    const weigh = (word) => 1 / (1 + pagesWith(word, Search.index).size);
    Object.assign(weights, { query, found: new Map(wordsOf(query).map((word) => [word, weigh(word)])) });
  }
  return weights.found;
}

/** The sentence of a page, or of the section that was found, with most of the words: {id, heading, sentence}.
    Of several the first; without any the section's beginning. */
function excerpt(sections, { anchor }, query) {
  const words = weights(query);
  const inSection = sections.filter(([id]) => !anchor || `#${id}` === anchor);
  const own = inSection.length ? inSection : sections; // a term of the glossary is in a table
  let best = { count: 0, id: own[0]?.[0] ?? "", heading: own[0]?.[1] ?? "", sentence: own[0]?.[2] ?? "" };
  for (const [id, heading, text] of own)
    for (const sentence of text.split(/(?<=[.!?])\s+|(?<=[。！？])/)) {
      const count = [...new Set(wordsOf(sentence))].reduce((sum, word) => sum + (words.get(word) ?? 0), 0);
      if (count > best.count) best = { count, id, heading, sentence };
    }
  return best;
}

/** A long sentence is cut around the first of the words. The words are marked. -> nodes */
function markedWords(sentence, query) {
  const words = new Set(wordsOf(query));
  const has = (part) => wordsOf(part).some((word) => words.has(word));
  const parts = sentence.split(/([a-z0-9]+(?:[-_][a-z0-9]+)*|[\u4e00-\u9fff]+)/i).flatMap((part) => hanParts(part, words));
  const first = parts.findIndex(has);
  let from = Math.max(0, first);
  for (let before = 0; from > 0 && before + parts[from - 1].length < EXCERPT / 3; from--) before += parts[from - 1].length;
  const nodes = from > 0 ? ["... "] : [];
  let length = 0;
  for (const part of parts.slice(from)) {
    length += part.length;
    if (length > EXCERPT) {
      nodes.push("...");
      break;
    }
    nodes.push(has(part) ? Object.assign(document.createElement("mark"), { textContent: part }) : part);
  }
  return nodes;
}

/** A run of Han characters, cut where the words begin and end. */
function hanParts(part, words) {
  if (!HAN.test(part)) return [part];
  const letters = [...part];
  const isIn = letters.map((_, i) => words.has(letters[i] + letters[i + 1]) || words.has(letters[i - 1] + letters[i]));
  const cut = [];
  letters.forEach((letter, i) => {
    if (i > 0 && isIn[i] === isIn[i - 1]) cut.push(cut.pop() + letter);
    else cut.push(letter);
  });
  return cut;
}

Object.assign(Search, { rank, linkTo, textOf, excerpt, markedWords });
