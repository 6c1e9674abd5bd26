// The search of the site, in place of Sphinx's scoring: pages whose headings have the reader's
// words come first, a rare word counts more than a frequent one, a page need not have all of them,
// and a result leads to the section. hooks.py cuts the pages into words as splitQuery cuts queries.

/** Words, "allreduce" as well as "all" and "reduce", and each two neighbours of a run of Han characters. */
var splitQuery = (query) => {
  const text = query.toLowerCase();
  const joined = text.match(/[a-z0-9]+(?:[-_][a-z0-9]+)+/g) ?? [];
  const runs = text.match(/[\u4e00-\u9fff]{2,}/g) ?? [];
  return [
    ...(text.match(/[a-z0-9]+/g) ?? []),
    ...joined.map((word) => word.replaceAll(/[-_]/g, "")),
    ...runs.flatMap((run) => [...run].slice(1).map((after, i) => run[i] + after)),
  ];
};

/** What people type for a page that does not say it so: counts like a heading of that page. */
const ALSO = {
  "docs/doctor": "is my script correct right wrong bug check doctor 脚本诊断 写对",
  "docs/speed": "speed why is my script slow slower than one gpu low gpu utilization usage throughput 速度慢",
  "docs/reading_timings": "slow slower slowdown low utilization speedup no speedup not faster with 2 gpus than single one gpu scaling 训练变慢 速度慢 加速",
  "docs/eight_gpus": "low scaling efficiency bottleneck exposed communication",
  "docs/messages": "error exception 报错 端口被占用 显存不足",
  "docs/is_it_ddp": "nan loss memory leak memory grows cuda error late gpu driver too old sm_120 not compatible",
  "docs/around_the_ranks": "srun pytorchjob trainjob accelerate launch mpi ssh world size rank environment variables",
  "docs/host": "how many num_workers cpu cores ram shared memory docker shm pause between epochs dataloader stuck",
  "docs/memory": "cuda oom out of memory 显存不足",
  "docs/debugging": "hang hangs hung stuck deadlock freeze frozen 训练卡住 卡死 死锁",
  "docs/adapt": "how to use multiple gpus in pytorch convert my script",
  "docs/amp": "fp16 bf16 half precision nan 混合精度",
  "docs/at_scale": "how many gpus do i need",
  "docs/checklist": "print once only on rank 0 review",
  "docs/batch_size_and_learning_rate": "how to choose batch size not converging loss not decreasing accuracy 学习率 损失不下降",
  "docs/checkpoints": "checkpoint checkpoints resume restart save load 保存模型",
  "docs/gradient_accumulation": "梯度累积",
  "docs/questions": "different results on one gpu and two",
  "04_ddp_torchrun/README": "torchrun",
  "04_ddp_torchrun/README.zh": "torchrun 启动",
  "docs/glossary": "what is rank 是什么",
  "02_dp/README": "difference between dataparallel dataparalell and distributeddataparallel",
  "03_ddp_spawn/README": "multi gpu one machine",
  "03_ddp_spawn/README.zh": "单机多卡 多卡",
  "05_multinode/README": "multi node several machines",
  "05_multinode/README.zh": "多机多卡 断点续训",
  "README.zh": "分布式训练 数据并行",
  "docs/teaching": "teach course class students homework grading lecture workshop",
  "exercises/README": "practice practise exercise quiz 练习",
};

/** What a Chinese page counts for somebody who searches without a Han character. */
const OTHER_LANGUAGE = 0.4;
const HAN = /[\u4e00-\u9fff]/;

/** Which pages have a word: Map(page -> 1, or less where it is a part of a longer word). Sphinx
 * leaves out of a page's text what one of its headings has. */
function pagesWith(word, { terms, titleterms }) {
  const found = new Map();
  for (const [term, pages] of [terms, titleterms].flatMap(Object.entries)) {
    const share = term === word ? 1 : word.length > 3 && term.includes(word) ? 0.5 : 0;
    if (share)
      for (const page of [pages].flat()) found.set(page, Math.max(share, found.get(page) ?? 0));
  }
  return found;
}

function rank(query, words) {
  const { alltitles, docnames, titles, filenames } = Search._index;
  const texts = new Map([...words].map((word) => [word, pagesWith(word, Search._index)]));
  const weight = (word) => Math.log(1 + docnames.length / (1 + texts.get(word).size));
  const total = (found) => [...found].reduce((sum, word) => sum + weight(word), 0);
  const most = total(words) || 1;
  const inText = docnames.map((_, page) =>
    [...texts].reduce((sum, [word, pages]) => sum + weight(word) * (pages.get(page) ?? 0), 0),
  );
  const stemmer = new Stemmer();
  const best = new Map(); // page -> its best heading
  const shareOf = (page) => (docnames[page].endsWith(".zh") && !HAN.test(query) ? OTHER_LANGUAGE : 1);
  const also = Object.entries(ALSO).map(([page, words]) => [words, [[docnames.indexOf(page), null]]]);
  for (const [heading, places] of [...Object.entries(alltitles), ...also]) {
    const own = new Set(splitQuery(heading).map((word) => stemmer.stemWord(word)));
    const shared = [...words].filter((word) => own.has(word));
    const share = total(shared) / most + (0.3 * shared.length) / own.size; // the shorter the better
    for (const [page, id] of places) {
      const exact = heading.toLowerCase().includes(query.toLowerCase().trim()) ? 0.5 : 0;
      const whole = id === null ? (share ? 0.6 : 0.01) : 0; // without such a heading: to the top
      const score = shareOf(page) * (inText[page] / most + 2 * share + exact + whole);
      const shown = id === null ? titles[page] : heading;
      if (score > (best.get(page)?.score ?? 0)) best.set(page, { score, heading: shown, id });
    }
  }
  const found = [...best].sort(([, a], [, b]) => a.score - b.score).slice(-30);
  const least = Math.max(0.5, 0.3 * (found.at(-1)?.[1].score ?? 0));
  return found
    .filter(([, { score }]) => score >= least)
    .map(([page, { score, heading, id }]) => {
      const title = id === null ? heading : `${titles[page]} > ${heading}`;
      const anchor = id === null ? "" : `#${id}`;
      const file = docnames[page] === "README" ? "index" : docnames[page];
      return [file, title, anchor, null, score, filenames[page], "text"];
    });
}

document.addEventListener("DOMContentLoaded", () => {
  Search._performSearch = (query, words) => rank(query, words);
  // A page that was opened as a file may not read another one: the results stand without excerpts.
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

  // The lines shown of a page come from its text, not from the theme's buttons and lists.
  const toText = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    const others = ".bd-header-article, .bd-sidebar-secondary, #jb-print-docs-body, footer";
    page.querySelectorAll(others).forEach((element) => element.remove());
    return toText(page.documentElement.outerHTML, anchor);
  };
});
