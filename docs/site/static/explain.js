// What the logs of a failed run say: the browser's half of `ddp-doctor explain`.
//
// It has the functions of doctor/ddp_doctor/explain*.py in the same order and under the same names,
// and reads the same rules and messages. A test compares what both say of the same logs. Nothing
// here touches the page (explain_page.js does), and nothing is sent anywhere.

const Explain = (() => {
  // ------------------------------------------------ explain_match.py: rules and messages

  /** A pattern as Python writes it: (?P<name>...) and a leading (?i). */
  function regex(pattern, flags = "") {
    const ignoreCase = pattern.startsWith("(?i)");
    const source = pattern.replace(/^\(\?i\)/, "").replaceAll("(?P<", "(?<");
    return new RegExp(source, flags + (ignoreCase ? "i" : ""));
  }

  const HOLE = /(\{\w*\})/;
  const WEIGHTS = {};
  const OUTCOMES = {};
  const EXIT_CODES = new Map();
  const FILED = new Map();
  const CONDITIONS = new Set();
  let FACTS, EXIT_FACTS, NUMBERED_FACTS, OTHER_FACTS, NUMBERED_CONDITIONS, PREFIXES, FILE_NAMES, RULES;
  let LIBRARY, HARMLESS, CHAIN;

  /** Take the rules and the table of messages. It is called once, before the first log. */
  function load(rules, entries) {
    RULES = rules;
    Object.assign(WEIGHTS, rules.weights);
    for (const [name, words] of Object.entries(rules.outcomes)) OUTCOMES[name] = outcome(words);
    for (const words of rules.exit_codes)
      for (const code of words.codes) EXIT_CODES.set(code, outcome(words));
    const defaults = { needs: "", bears_on: "", meaning: "" };
    FACTS = rules.facts.map((fact) => ({ ...defaults, ...fact, pattern: regex(fact.pattern) }));
    NUMBERED_FACTS = FACTS.filter((fact) => fact.needs);
    EXIT_FACTS = FACTS.filter((fact) => fact.role === "exit");
    OTHER_FACTS = FACTS.filter((fact) => !fact.needs);
    PREFIXES = rules.prefixes.map(([kind, pattern]) => [kind, regex(pattern, "y")]);
    FILE_NAMES = rules.file_names.map(([kind, pattern]) => [kind, regex(pattern, "i")]);
    LIBRARY = regex(rules.library_files);
    HARMLESS = regex(rules.harmless);
    CHAIN = regex(rules.chained_tracebacks);
    file(entries);
    for (const entry of entries)
      for (const alternatives of [...entry.with, ...entry.without])
        for (const words of alternatives) CONDITIONS.add(words);
    NUMBERED_CONDITIONS = [...CONDITIONS].filter((words) => /\d/.test(words));
  }

  function outcome(words) {
    const rule = { title: "", role: "", meaning: "", next: "", page: "", sure: "", nobody: "" };
    Object.assign(rule, { length: 0, conditions: [], where: [], ranks: "" }, words);
    rule.weight = words.weight || WEIGHTS[rule.role] || 0;
    return rule;
  }

  function factsOf(text, facts) {
    const found = [];
    for (const fact of facts) {
      const match = text.includes(fact.needs) && fact.pattern.exec(text);
      if (match) found.push([fact, filled(match)]);
    }
    return found;
  }

  function filled(match) {
    return Object.fromEntries(Object.entries(match.groups ?? {}).filter(([, value]) => value !== undefined));
  }

  const escape = (words) => words.replace(/[.*+?^${}()|[\]\\/-]/g, "\\$&");

  /** A message with holes as a pattern; a blank stands for any white space. */
  function patternOf(words) {
    const parts = [];
    const seen = new Set();
    for (const part of words.split(HOLE)) {
      const hole = /^\{(\w*)\}$/.exec(part);
      const name = hole?.[1];
      if (!hole) parts.push(part.split(/\s+/).map(escape).join("\\s+"));
      else if (name && !seen.has(name)) {
        seen.add(name);
        parts.push(`(?<${name}>.{1,200}?)`);
      } else parts.push(".{0,200}?");
    }
    // A hole at the end would otherwise take one character of a number or a name.
    if (/\{\w*\}$/.test(words)) parts.push("(?!\\w)");
    return new RegExp(parts.join(""), "s");
  }

  function wholeWords(words) {
    // A word that touches a hole may go on in the log.
    const marked = words.replace(/\{\w*\}/g, "\0");
    return marked.match(/(?<![\w\0])[A-Za-z_]\w+(?![\w\0])/g) ?? [];
  }

  /** File each message under one whole word that it needs, the rarest one of all messages. */
  function file(entries) {
    const counts = new Map();
    for (const entry of entries)
      for (const [words] of entry.messages)
        for (const word of wholeWords(words)) counts.set(word, (counts.get(word) ?? 0) + 1);
    for (const entry of entries)
      for (const [words, role] of entry.messages) {
        const rarest = first(wholeWords(words), (a, b) => counts.get(a) - counts.get(b) || b.length - a.length);
        const key = rarest ?? null;
        if (!FILED.has(key)) FILED.set(key, []);
        FILED.get(key).push([ruleOf(entry, words, role), patternOf(words)]);
      }
  }

  function ruleOf(entry, words, role) {
    const conditions = [...entry.with.map((one) => [true, one]), ...entry.without.map((one) => [false, one])];
    const { title, meaning, next, page, where, ranks, kind } = entry;
    const length = words.replace(/\{\w*\}/g, "").length;
    return outcome({ title, role, meaning, next, page, length, conditions, where, kind, ranks: ranks ?? "" });
  }

  function candidatesOf(text) {
    const candidates = [...(FILED.get(null) ?? [])];
    const words = new Set(text.match(/\w+/g) ?? []);
    for (const word of [...words].filter((one) => FILED.has(one)).sort()) candidates.push(...FILED.get(word));
    return candidates;
  }

  function messagesOf(text, candidates = candidatesOf(text)) {
    const found = [];
    for (const [rule, pattern] of candidates) {
      const match = pattern.exec(text);
      if (match) found.push([rule, filled(match)]);
    }
    return found;
  }

  /** Those messages whose conditions hold, the one with the most fixed words first. */
  function bestFirst(found, seen) {
    const known = found.filter(([rule, fields]) => holds(rule, fields, seen));
    const byTitle = (a, b) => (a.title < b.title ? -1 : a.title > b.title ? 1 : 0);
    return known.sort(([a], [b]) => b.length - a.length || b.weight - a.weight || byTitle(a, b));
  }

  function holds(rule, fields, seen) {
    for (const [wanted, alternatives] of rule.conditions)
      if (wanted !== alternatives.some((words) => seen.has(words))) return false;
    for (const [name, sign, limit] of rule.where)
      if (name in fields && !compare(fields[name], sign, fields[limit] ?? limit)) return false;
    return true;
  }

  function compare(have, sign, limit) {
    const difference = Number(have) - Number(limit);
    if (Number.isNaN(difference)) return have === limit;
    if (sign === "=") return difference === 0;
    return sign === ">" ? difference > 0 : difference < 0;
  }

  // ------------------------------------------------ explain_log.py: one pass over the lines

  const COLOURS = new RegExp(`${String.fromCharCode(27)}\\[[0-9;?]*[A-Za-z]`, "g");
  // Blanks of web pages, and the mark of a file's encoding.
  const ODD_BLANKS = /[\u00a0\u2007\u202f\ufeff]/g;
  const TRACEBACK = "Traceback (most recent call last)";
  const FRAME = /^\s*(?:[|>]\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?/;
  const STACK_LINE = /^\s*#\d+ \S+ from (\S+):(\d+)/;
  const SOURCE_PLACE = /\[\S*\/\S+\.(?:cc|cpp):\d+\] /g;
  const HEADER = /^[EWI]\d{4} \d\d:\d\d:\d\d\.\d+ /;
  const CLOCK = /(?<![[<:\d])(\d\d):(\d\d):(\d\d)\b/;
  const NUMBERED = /^ *\d{1,4}: /;
  const HOST_LABEL = /^(?!\d+:)([\w.-]*[\d-][\w.-]*): /;
  // In front of each line of a container: what `kubectl logs --prefix --timestamps` adds.
  const POD_LABEL = /^\[pod\/([\w.-]+)\/[\w.-]+\] /;
  const STAMP = /^\d{4}-\d\d-\d\dT(\d\d):(\d\d):(\d\d)(?:\.\d+)?(?:Z|[+-]\d\d:\d\d) /;
  const LABEL_OF_RANK = /^\[[Rr]ank ?(\d+)/;
  const LOCAL_AND_RANK = /^\[default(\d+)\]: ?\[rank(\d+)\]:/;
  // Out of memory: "(GPU 2; 23.69 GiB total capacity" or "GPU 2 has a total capacity of".
  const FULL_GPU = /\bGPU ([1-9]\d?)(?:;| has a total)/;
  const RAY_PROCESS = /\(pid=(\d+), ip=/g;
  const REPORTED_RANK = /^\s*rank\s*: (\d+) \(local_rank: \d+\)/;
  const REPORTED_CODE = /^\s*exitcode\s*: (-?\d+)\s+\(pid: (\d+)\)/;
  const REPORTED_HOST = /^\s*host\s*: (\S+)/;
  const REPORTED_TRACEBACK = /^\s*traceback : /;
  const NAMED_RANK = /\brank[ =:#_]{0,2}(\d{1,4})\b/i;
  const AFTER_TRACEBACK = /^(?:\[?[EWIF]\d{3,4} |={8}|\[[A-Z]\d|srun: |slurmstepd: )/;
  const MOST_LINES_AFTER = 25;
  const MOST_ALIKE = 100;
  const MOST_SHAPES = 50_000;

  class Log {
    constructor() {
      this.seen = new Set();
      this.notable = [];
      this.blocks = [];
      this.values = {};
      this.hints = [];
      this.complaints = new Map();
      this.collectives = new Map();
      this.stacks = new Map();
      this.exits = new Map();
      this.torn = false;
      this.loneCodes = [];
      this.localExits = [];
      this.hosts = new Map();
      this.ranksOfPids = new Map();
      this.talk = new Map();
      this.tails = new Map();
      this.ranks = new Set();
      this.ranksAreNamed = false;
      this.nodes = new Set();
      this.ncclHosts = new Set();
      this.world = 0;
      this.perNode = 1;
      this.tasksAreNodes = false;
      this.blank = true;
      this.open = new Map();
      this.shapes = new Map();
      this.before = "";
      this.stackRank = null;
      this.reportRank = null;
      this.reportHost = null;
      this.inTornTraceback = false;
      // Only the page asks for these: the last line of each rank, and when the log begins and ends.
      this.lastLines = new Map();
      this.span = { low: Infinity, high: -Infinity, position: 0 };
    }

    read(line) {
      this.readReport(line);
      this.know(line);
      this.readWords(line);
      this.before = line.text;
    }

    readWords(line) {
      const stack = STACK_LINE.exec(line.text);
      if (stack) {
        if (!LIBRARY.test(stack[1]) && this.stackRank !== null && !this.stacks.has(this.stackRank))
          this.stacks.set(this.stackRank, `${stack[1]}:${stack[2]}`);
        return;
      }
      const shape = this.shapeOf(line.text);
      for (const words of NUMBERED_CONDITIONS) if (line.text.includes(words)) this.seen.add(words);
      const block = this.open.get(streamOf(line));
      if (block || (line.text.includes(TRACEBACK) && !HEADER.test(line.text)))
        if (this.readTraceback(line, block)) {
          this.matchInside(line, shape);
          return;
        }
      this.match(line, shape);
    }

    know(line) {
      this.live(line);
      if (line.text) this.blank = false;
      if (line.rank !== null) {
        this.ranks.add(line.rank);
        this.ranksAreNamed = true;
        if (line.pid && !this.ranksOfPids.has(line.pid)) this.ranksOfPids.set(line.pid, line.rank);
      }
      if (line.node !== null) this.nodes.add(line.node);
      if (line.host !== null) this.ncclHosts.add(line.host);
      if (line.task !== null && line.rank !== null && line.rank !== line.task) this.tasksAreNodes = true;
    }

    /** A sign of life; what a launcher reports about a rank afterwards is none. */
    live(line) {
      this.span.position = line.position;
      if (line.time !== null) {
        this.span.low = Math.min(this.span.low, line.time);
        this.span.high = Math.max(this.span.high, line.time);
      }
      if (!line.isReport && line.text && (line.rank ?? line.task) !== null)
        this.lastLines.set(`${line.task}/${line.rank}`, line);
    }

    shapeOf(text) {
      const form = text.replace(/\d+/g, "0");
      let shape = this.shapes.get(form);
      if (!shape) {
        if (this.shapes.size > MOST_SHAPES) this.shapes.clear();
        const facts = [...OTHER_FACTS.filter((fact) => fact.pattern.test(text)), ...NUMBERED_FACTS];
        shape = { facts, candidates: candidatesOf(text), harmless: HARMLESS.test(text), kept: new Map() };
        this.shapes.set(form, shape);
        for (const words of CONDITIONS) if (text.includes(words)) this.seen.add(words);
      }
      return shape;
    }

    match(line, shape) {
      const facts = factsOf(line.text, shape.facts);
      for (const [fact, fields] of facts) this.take(fact, line, fields);
      const roles = new Set(facts.map(([fact]) => fact.role));
      let found = [];
      if (shape.candidates.length && !roles.has("exit") && !roles.has("ignore"))
        found = messagesOf(line.text, shape.candidates);
      const kept = shape.kept.get(line.rank) ?? 0;
      if (found.length && kept < MOST_ALIKE) {
        shape.kept.set(line.rank, kept + 1);
        this.notable.push([line, found]);
      }
      if (!found.length && roles.has("complaint") && !this.complaints.has(line.rank))
        this.complaints.set(line.rank, line);
      if (!found.length && !shape.harmless && (!facts.length || roles.has("progress") || roles.has("end")))
        this.remember(line);
    }

    /** A line of a traceback: its words are matched with the whole, and here only the facts. */
    matchInside(line, shape) {
      const block = this.open.get(streamOf(line));
      const ended = block && block.segments.at(-1).line;
      for (const [fact, fields] of factsOf(line.text, shape.facts))
        if (fact.role === "fact" || (ended && ["progress", "end"].includes(fact.role)))
          this.take(fact, line, fields);
    }

    take(fact, line, fields) {
      const rank = number(fields.rank, line.rank);
      if ("world" in fields) this.world = Math.max(this.world, Number(fields.world));
      if ("local" in fields) this.perNode = Math.max(this.perNode, Number(fields.local) + 1);
      const pid = fields.pid ?? line.pid;
      if ("rank" in fields) {
        this.ranks.add(rank);
        if (pid) this.ranksOfPids.set(pid, rank);
      }
      if (fact.role === "fact") {
        for (const [name, value] of Object.entries(fields)) this.values[name] ??= value;
        if (fact.meaning) this.hints.push([fact, line, fields]);
      } else if (fact.role === "collective") this.takeCollective(line, rank, fields);
      else if (fact.role === "exit") this.takeExit(fact, line, fields);
      else if (fact.role === "progress") {
        const progress = this.tail(line).progress;
        progress.push(line.position);
        if (progress.length > 3) progress.shift();
        this.seen.add("(progress)");
      } else if (fact.role === "end") this.tail(line).end = line;
    }

    takeCollective(line, rank, fields) {
      this.stackRank = rank;
      if (rank === null) return;
      if (!this.collectives.has(rank)) this.collectives.set(rank, { line });
      const known = this.collectives.get(rank);
      for (const [name, value] of Object.entries(fields)) known[name] ??= value;
      if ("operation" in known) known.sequence ??= "0"; // PyTorch 1.x prints none
    }

    takeExit(fact, line, fields) {
      this.tail(line).exit = line.position;
      const code = Number(fields.code ?? (fact.code || 1));
      if ("local" in fields) this.localExits.push([line, Number(fields.local), fields.pid, code]);
      if (line.label) return; // such a launcher counts the ranks of each host from 0
      for (const rank of expand(fields.ranks ?? "")) if (!this.exits.has(rank)) this.exits.set(rank, code);
    }

    tail(line) {
      if (!this.tails.has(line.file)) this.tails.set(line.file, { progress: [], end: null, exit: -1 });
      return this.tails.get(line.file);
    }

    remember(line) {
      const named = NAMED_RANK.exec(line.text.slice(0, 60));
      const rank = line.rank === null && named ? Number(named[1]) : line.rank;
      this.talk.set(`${line.node}/${line.task}/${rank}`, { task: line.task, rank, line });
    }

    readReport(line) {
      if (line.text.startsWith("---") || line.text.startsWith("===")) {
        const stream = streamOf({ ...line, rank: this.reportRank });
        if (this.open.has(stream)) this.close(stream);
        this.reportRank = null;
        return;
      }
      if (this.reportRank !== null && line.rank === null && line.text.startsWith("  ")) {
        // With @record the report has the traceback, too, indented by two blanks.
        line.rank = this.reportRank;
        line.isReport = true;
        line.text = line.text.slice(2).replace(/^traceback : /, "");
      } else if (this.reportRank === null) this.readTornReport(line);
      if (!line.text.slice(0, 20).includes(":")) return;
      const host = REPORTED_HOST.exec(line.text);
      if (host) this.reportHost = host[1];
      const rank = REPORTED_RANK.exec(line.text);
      if (rank) {
        this.reportRank = Number(rank[1]);
        this.hosts.set(this.reportRank, this.reportHost);
      }
      const code = REPORTED_CODE.exec(line.text);
      if (code) this.tail(line).exit = line.position;
      if (code && this.reportRank !== null) {
        this.exits.set(this.reportRank, Number(code[1]));
        this.ranksOfPids.set(code[2], this.reportRank);
      } else if (code) {
        this.torn = true;
        this.loneCodes.push(Number(code[1]));
      }
    }

    /** People paste the last lines of a report, without the one that names the rank. */
    readTornReport(line) {
      const traceback = REPORTED_TRACEBACK.exec(line.text);
      if (traceback) {
        line.text = line.text.slice(traceback[0].length);
        this.torn = this.inTornTraceback = true;
      } else if (this.inTornTraceback && line.text.startsWith("  ")) line.text = line.text.slice(2);
      else this.inTornTraceback = false;
    }

    /** Collect a traceback with its message; true if the line belongs to one. */
    readTraceback(line, block) {
      const text = line.text;
      if (text.includes(TRACEBACK)) {
        this.startTraceback(line, block);
        return true;
      }
      if (CHAIN.test(text)) {
        block.chained = text.includes("-- Process") ? "inner" : "after";
        block.after = 0;
        this.takeExits(text, line);
        return true;
      }
      const segment = block.segments.at(-1);
      const frame = FRAME.exec(text);
      if (frame) {
        block.frames.push(`${frame[1]} ${frame[3] ?? "None"}`);
        if (!LIBRARY.test(frame[1])) segment.user = `${frame[1]}:${frame[2]}`;
      } else if (segment.line === null) {
        // Two ranks that print at the same time mix their lines: "^^^^  File ..." is no message.
        if (text && !/^[\s^]/.test(text)) {
          segment.line = line;
          segment.message = text.trim().replace(SOURCE_PLACE, "");
        }
      } else {
        block.after += 1;
        if (segment.message.endsWith(":") && text.trim() && !segment.inner) segment.message += ` ${text.trim()}`;
        const over = AFTER_TRACEBACK.test(text) || block.after > MOST_LINES_AFTER;
        if (over && !block.chained) {
          this.close(streamOf(line));
          return false;
        }
      }
      block.text.push(text);
      return true;
    }

    startTraceback(line, block) {
      const inner = line.text.includes("Original Traceback") || block?.chained === "inner";
      if (block && !block.chained && !inner) {
        this.close(streamOf(line));
        block = null;
      }
      if (!block) {
        const ignored = this.before.startsWith("Exception ignored in");
        block = { rank: line.rank, ignored, segments: [], chained: "", text: [], frames: [], after: 0 };
        this.open.set(streamOf(line), block);
      }
      if (inner) block.text = [];
      block.segments.push({ inner, user: null, line: null, message: "" });
      block.chained = "";
    }

    close(stream) {
      const block = this.open.get(stream);
      this.open.delete(stream);
      block.segments = block.segments.filter((segment) => segment.line);
      if (!block.segments.length || block.ignored) return;
      this.blocks.push(block);
      this.takeExits(block.text.join("\n"), block.segments[0].line);
    }

    /** mp.spawn and Lightning report a rank's exit code in an exception. */
    takeExits(text, line) {
      for (const [fact, fields] of factsOf(text, EXIT_FACTS)) this.take(fact, line, fields);
    }

    finish() {
      for (const stream of this.open.keys()) this.close(stream);
      for (const [line, local, pid, code] of this.localExits) {
        const rank = (line.node ?? 0) * this.perNode + local;
        if (!this.ranksOfPids.has(pid) && !this.exits.has(rank)) this.exits.set(rank, code);
      }
      for (const rank of [...this.collectives.keys(), ...this.exits.keys()]) this.ranks.add(rank);
      if (this.world <= 64) for (let rank = 0; rank < this.world; rank++) this.ranks.add(rank);
      if (this.perNode === 1 && [...this.nodes].every((node) => node < this.nodes.size))
        for (const node of this.nodes) this.ranks.add(node);
      this.lastWords = new Map();
      for (const { task, rank, line } of this.talk.values()) {
        this.place(line);
        const whose = rank === null && !this.tasksAreNodes ? task : rank;
        const have = this.lastWords.get(whose);
        if (!have || have.position < line.position) this.lastWords.set(whose, line);
      }
      for (const [line] of this.notable) this.place(line);
      for (const block of this.blocks) for (const segment of block.segments) this.place(segment.line);
      for (const rank of this.lastWords.keys()) this.ranks.add(rank);
      this.ranks.delete(null);
      return this;
    }

    /** `srun -l` numbers tasks. A task is a rank, or a torchrun whose ranks have numbers. */
    place(line) {
      if (line.task === null) return;
      if (this.tasksAreNodes) line.node = line.task;
      else if (line.rank === null) {
        line.rank = line.task;
        this.ranks.add(line.task);
      }
    }
  }

  const streamOf = ({ file, label, task, rank }) => `${file}\n${label ?? task}\n${rank}`;
  const number = (text, otherwise) => (/^\d+$/.test(text ?? "") ? Number(text) : otherwise);

  /** The ranks that Slurm writes as 0-2,5. */
  function expand(text) {
    const ranks = [];
    for (const part of text.replaceAll(" ", "").match(/\d+(?:-\d+)?/g) ?? []) {
      const [from, to] = part.split("-").map(Number);
      for (let rank = from; rank <= (to ?? from); rank++) ranks.push(rank);
    }
    return ranks;
  }

  function readLogs(files) {
    const log = new Log();
    let position = 0;
    for (const { path, name, text } of files)
      for (const line of linesOf(path ?? name, name, text)) {
        line.position = position++;
        log.read(line);
      }
    return log.finish();
  }

  function* linesOf(path, name, whole) {
    const ofFile = numbersOfName(path.replaceAll("\\", "/"));
    const raws = whole.split("\n");
    if (raws.at(-1) === "") raws.pop();
    const firstLines = raws.slice(0, 400).map((raw) => ofContainer(raw)[0]);
    const [tasks, hosts, ranks] = labelsOf(firstLines);
    if (ranks.size > 1) delete ofFile.rank; // the number in the name is something else
    const labelled = firstLines.some((line) => line.includes("[default"));
    const ranksOfLocals = labelled ? localsOf(raws) : new Map();
    let time = null;
    for (const [index, printed] of raws.entries()) {
      const [raw, pod, stamp] = ofContainer(printed);
      for (const text of partsOf(raw)) {
        const line = { file: name, number: index + 1, position: 0, text, rank: null, task: null };
        Object.assign(line, { node: ofFile.node ?? null, label: pod, host: null, device: null, pid: null });
        takePrefixes(line, tasks, hosts, ranksOfLocals);
        line.rank ??= ofFile.rank ?? null;
        const clock = (line.text.includes(":") && CLOCK.exec(line.text)) || stamp;
        if (clock) time = Number(clock[1]) * 3600 + Number(clock[2]) * 60 + Number(clock[3]);
        line.time = time;
        yield line;
      }
    }
  }

  /** [the line without what `kubectl logs` has put in front, the pod's name, the time] */
  function ofContainer(raw) {
    const pod = POD_LABEL.exec(raw);
    if (pod) raw = raw.slice(pod[0].length);
    const stamp = STAMP.exec(raw);
    if (stamp) raw = raw.slice(stamp[0].length);
    return [raw, pod ? pod[1] : null, stamp];
  }

  /** A progress bar overwrites its line. Only its last state is of interest, and other words. */
  function partsOf(raw) {
    const text = raw.replace(ODD_BLANKS, " ").replace(COLOURS, "").trimEnd();
    if (!text.includes("\r")) return [text];
    const parts = text.split("\r");
    const others = parts.slice(0, -1).filter((part) => part.trim() && !part.includes("%|"));
    return [...others, parts.at(-1)];
  }

  function numbersOfName(path) {
    for (const [kind, pattern] of FILE_NAMES) {
      const match = pattern.exec(path);
      if (match) return { [kind]: Number(match[1]) };
    }
    return {};
  }

  function labelsOf(lines) {
    const share = (pattern) => lines.filter((line) => pattern.test(line)).length > 0.6 * lines.length;
    const ranks = new Set(lines.map((line) => LABEL_OF_RANK.exec(line)?.[1]).filter(Boolean));
    return [share(NUMBERED), share(HOST_LABEL), ranks];
  }

  /** The ranks of torchrun's labels, which count within the node, from lines that have both. */
  function localsOf(lines) {
    const found = new Map();
    for (const line of lines) {
      const match = line.startsWith("[") && LOCAL_AND_RANK.exec(line);
      if (match && !found.has(match[1])) found.set(match[1], Number(match[2]));
    }
    return found;
  }

  function takePrefixes(line, tasks, hosts, ranksOfLocals) {
    const label = hosts && HOST_LABEL.exec(line.text);
    if (label) {
      line.label = label[1];
      line.text = line.text.slice(label[0].length);
    }
    for (const [kind, pattern] of PREFIXES) {
      pattern.lastIndex = 0;
      const match = pattern.exec(line.text);
      if (!match || (kind === "task" && !tasks)) continue;
      if (kind === "nccl") {
        const { host, pid, device } = match.groups;
        Object.assign(line, { host, pid, device: Number(device) });
      } else if (kind === "pid") line.pid = match[1];
      else if (kind === "task") line.task = Number(match[1]);
      else if (kind === "rank") line.rank = Number(match[1]);
      else if (kind === "local" && line.rank === null) line.rank = ranksOfLocals.get(match[1]) ?? Number(match[1]);
      line.text = line.text.slice(match[0].length);
    }
  }

  // ------------------------------------------------ explain_events.py: what the lines mean

  const isFailure = (event) => event.rule.role in WEIGHTS;

  function eventsOf(log) {
    const events = [];
    const notes = [];
    for (const [line, found] of log.notable) {
      const event = eventOfLine(line, bestFirst(found, log.seen));
      if (event) (event.rule.role === "note" ? notes : events).push(event);
    }
    for (const block of log.blocks) {
      const event = eventOfTraceback(log, block);
      if (event) events.push(event);
    }
    events.sort((a, b) => a.line.position - b.line.position);
    for (const event of [...events, ...notes]) nameRank(log, event);
    return [spread(log, events), notes];
  }

  function newEvent(rule, line, rank, fields, where, message) {
    return { rule, line, rank, fields, where, message, others: [], page: "", during: "" };
  }

  function eventOfLine(line, all) {
    // A frame stands around another message, which tells more if it is on the same line.
    let known = all.filter(([rule]) => rule.role !== "frame");
    if (!known.length) return null;
    const telling = known.filter(([rule]) => rule.role !== "vague");
    if (telling.length) known = telling;
    const stripped = line.text.trim();
    const message = stripped.replace(/^(?:\[[^\]]*\] ?)+/, "") || stripped;
    const event = newEvent(known[0][0], line, line.rank, known[0][1], null, message);
    event.others = othersOf(known);
    return event;
  }

  function othersOf(known) {
    const titles = [];
    for (const [rule] of known.slice(1)) {
      const alike = rule.length === known[0][0].length && rule.title !== known[0][0].title;
      if (alike && rule.role !== "frame" && !titles.includes(rule.title)) titles.push(rule.title);
    }
    return titles;
  }

  function eventOfTraceback(log, block) {
    let chosen = block.segments[0];
    for (const segment of block.segments) if (segment.inner) chosen = segment;
    let where = chosen.user;
    for (const segment of block.segments) where = where || segment.user;
    const known = bestFirst(messagesOf(block.text.join("\n")), log.seen);
    const failures = known.filter(([rule]) => rule.role in WEIGHTS);
    // "NCCL error" is less than any other message in the same traceback.
    const notVague = failures.filter(([rule]) => rule.role !== "vague");
    const telling = notVague.length ? notVague : failures;
    let event;
    if (telling.length) {
      event = newEvent(telling[0][0], chosen.line, block.rank, telling[0][1], where, chosen.message);
      event.others = othersOf(telling);
    } else if (isReport(chosen.message, log)) return null;
    else {
      const waits = regex(RULES.waiting_words).test(chosen.message);
      const rule = waits ? OUTCOMES.unknown_wait : OUTCOMES.exception;
      event = newEvent(rule, chosen.line, block.rank, {}, where, chosen.message);
      // The exception has no entry, but what it came through may have one.
      for (const segment of block.segments)
        for (const [rule] of bestFirst(messagesOf(segment.message), log.seen)) event.page ||= rule.page;
    }
    event.during = phaseOf(block);
    nameProcess(event, block.text.join("\n"));
    return event;
  }

  /** Ray prints the traceback of a worker in the driver, with the worker's process number. */
  function nameProcess(event, text) {
    const pids = [...text.matchAll(RAY_PROCESS)].map((match) => match[1]);
    if (pids.length) event.fields = { ...event.fields, pid: pids.at(-1) };
  }

  function phaseOf(block) {
    const frames = block.frames.join("\n");
    const phase = RULES.phases.find(({ pattern }) => new RegExp(pattern, "im").test(frames));
    return phase?.words ?? "";
  }

  function isReport(message, log) {
    if (factsOf(message, FACTS).some(([fact]) => fact.role === "ignore")) return true;
    return bestFirst(messagesOf(message), log.seen).some(([rule]) => rule.role === "frame");
  }

  function nameRank(log, event) {
    event.rank ??= event.line.rank;
    event.rank = number(event.fields.rank, event.rank);
    const pid = event.fields.pid || event.line.pid;
    if (event.rank === null && log.ranksOfPids.has(pid)) event.rank = log.ranksOfPids.get(pid);
    else if (event.rank === null && event.line.device !== null && log.ncclHosts.size === 1)
      event.rank = event.line.device;
    else if (event.rank === null && !log.ranksAreNamed && log.perNode === 1)
      // On one machine the rank is the number of its GPU, unless each rank sees one GPU only.
      event.rank = number(FULL_GPU.exec(event.line.text)?.[1], null);
    if (event.rank !== null) log.ranks.add(event.rank);
  }

  function spread(log, events) {
    const unnamed = events.filter((event) => event.rank === null && event.rule.role !== "setup");
    const named = new Set(events.map((event) => event.rank));
    const failed = numbers(log.exits.keys()).filter((rank) => log.exits.get(rank) > 0 && !named.has(rank));
    const out = [];
    for (const event of events) {
      const ranks = unnamed.includes(event) ? ranksOfUnnamed(log, event, unnamed, failed) : [];
      for (const rank of ranks) log.ranks.add(rank);
      for (const rank of ranks.length ? ranks : [event.rank]) out.push({ ...event, rank });
    }
    return out;
  }

  function ranksOfUnnamed(log, event, unnamed, failed) {
    const node = event.line.node;
    if (event.rule.role === "lost" && log.ranksAreNamed) return []; // the launcher's own connection
    if (node !== null && log.perNode === 1 && !failed.length) return [node];
    if (event.where || event.rule.role === "cause") {
      const alike = unnamed.filter((other) => other.rule.title === event.rule.title);
      const places = alike.filter((other) => other.where && other.where === event.where);
      if (places.length > 1 && places.length === log.ranks.size) return numbers(log.ranks); // a traceback for each
      if (failed.length === 1 || alike.length >= failed.length) return failed;
    }
    return [];
  }

  // ------------------------------------------------ explain_decide.py: which ranks failed first

  const STOPPED = [-15, 143];
  const ABORTED = [-6, 134];
  const KILLED = [-9, 137];

  const numbers = (ranks) => [...ranks].filter((rank) => rank !== null).sort((a, b) => a - b);
  /** The first of the smallest items, as Python's min() returns it. */
  function first(items, order) {
    let best;
    for (const item of items) if (best === undefined || order(item, best) < 0) best = item;
    return best;
  }

  const decision = (rule, ranks, event = null, values = {}) => ({ rule, ranks, event, values });

  function decide(log) {
    const [events, notes] = eventsOf(log);
    return { ...decisionOf(log, events), log, events, notes };
  }

  function decisionOf(log, events) {
    if (healthy(log, events))
      return decision(events.length || log.exits.size ? OUTCOMES.survived : OUTCOMES.healthy, []);
    const exits = numbers(log.exits.keys()).map((rank) => [rank, log.exits.get(rank)]);
    const failed = exits.filter(([, code]) => code !== 0 && !STOPPED.includes(code)).map(([rank]) => rank);
    if (afterTheEnd(log, events)) {
      const ended = failed.length ? failed : numbers(new Set(events.map((event) => event.rank)));
      return decision(OUTCOMES.after_the_end, ended.length === 1 ? ended : null, events[0] ?? null);
    }
    events = withoutLateSignals(events);
    const strongest = Math.max(0, ...events.map((event) => event.rule.weight));
    const ended = fromExitCodes(log, events, strongest, exits);
    if (ended) return ended;
    if (strongest > WEIGHTS.waited) return fromEvents(log, events, strongest);
    const timedOut = new Map([...log.collectives].filter(([, known]) => "sequence" in known));
    if (timedOut.size) return fromCollectives(log, timedOut);
    const waited = events.filter((event) => ["waited", "lost"].includes(event.rule.role));
    if (waited.length) return fromWaiting(log, waited);
    if (strongest) return fromEvents(log, events, strongest);
    // If all ended alike without a word, the first cause stands elsewhere.
    if (failed.length) return decision(OUTCOMES.exit_code, failed.length < log.ranks.size ? failed : null);
    for (const code of log.loneCodes)
      if (!STOPPED.includes(code)) return decision(EXIT_CODES.get(code) ?? OUTCOMES.exit_code, null);
    if (log.exits.size || log.loneCodes.length) return decision(OUTCOMES.stopped, null);
    if (log.complaints.size) return decision(OUTCOMES.complaint, null);
    return decision(OUTCOMES.nothing, []);
  }

  /** [file, position] of everything that looks like a failure. */
  function troublesOf(log, events) {
    const troubles = events.map((event) => [event.line.file, event.line.position]);
    for (const { line } of log.collectives.values()) troubles.push([line.file, line.position]);
    for (const [file, tail] of log.tails) if (tail.exit >= 0) troubles.push([file, tail.exit]);
    return troubles;
  }

  function healthy(log, events) {
    const troubles = troublesOf(log, events);
    for (const [file, position] of troubles) {
      const tail = log.tails.get(file);
      if (!tail) return false;
      const ended = tail.end && tail.end.position > position;
      const wentOn = tail.progress.length === 3 && tail.progress[0] > position;
      if (!ended && !wentOn) return false;
    }
    return troubles.length > 0 || [...log.tails.values()].some((tail) => tail.end);
  }

  function afterTheEnd(log, events) {
    const troubles = troublesOf(log, events);
    const reported = (event) => event.rule.kind === "launch" && event.where === null;
    const isLate = (event) => ["lost", "vague", "killed"].includes(event.rule.role) || reported(event);
    if (!events.every(isLate)) return false;
    if (log.collectives.size || !troubles.length) return false;
    for (const [file, position] of troubles) {
      if (!hadEnded(log, file, position)) return false;
      const tail = log.tails.get(file);
      if (tail.end.rank !== null && log.ranks.size > 1 && log.exits.get(tail.end.rank) === 0) return false;
    }
    return true;
  }

  /** Does an earlier line of the same file say so, and no step came after it? */
  function hadEnded(log, file, position) {
    const tail = log.tails.get(file);
    if (!tail || !tail.end || tail.end.position > position) return false;
    return !tail.progress.length || tail.progress.at(-1) <= tail.end.position;
  }

  /** A person who stops a run that has already failed is not the cause. */
  function withoutLateSignals(events) {
    const failed = events.filter(({ rule, line }) => ["cause", "setup"].includes(rule.role) && line.time !== null);
    const earliest = Math.min(...failed.map(({ line }) => line.time));
    const isSignal = ({ rule }) => rule.role === "killed" && rule.kind === "launch";
    return events.filter((event) => !isSignal(event) || event.line.time === null || event.line.time <= earliest);
  }

  function fromExitCodes(log, events, strongest, exits) {
    const telling = new Map();
    for (const [rank, code] of exits) {
      const rule = EXIT_CODES.get(code);
      if (rule && !explained(log, events, rank)) {
        if (!telling.has(rule.weight)) telling.set(rule.weight, []);
        telling.get(rule.weight).push(rank);
      }
    }
    const most = Math.max(0, ...telling.keys());
    if (!telling.size || most <= strongest) return null;
    const ranks = telling.get(most);
    return decision(EXIT_CODES.get(log.exits.get(ranks[0])), ranks);
  }

  function explained(log, events, rank) {
    if (!ABORTED.includes(log.exits.get(rank))) return false;
    return log.collectives.has(rank) || events.some((event) => event.rank === rank);
  }

  function fromEvents(log, events, weight) {
    const strongest = events.filter((event) => event.rule.weight === weight);
    const time = (event) => event.line.time || 10 ** 6;
    const one = first(strongest, (a, b) => time(a) - time(b) || a.line.position - b.line.position);
    const rule = one.rule;
    if (rule.role === "setup") return decision(rule, null, one);
    // The scheduler ended all of them.
    if (rule.ranks === "none" && rule.role === "killed") return decision(rule, null, one);
    let same = strongest.filter((event) => event.rule.title === rule.title);
    if (rule === OUTCOMES.exception) same = same.filter((event) => event.where === one.where);
    const concerned = ranksOfKind(log, rule);
    if (concerned.length) return decision(rule, concerned, one);
    const roots = new Set(numbers(same.map((event) => event.rank)));
    const more = roots.size ? sameEnd(log, events, roots) : endedLike(log, events, rule.role);
    for (const rank of more) roots.add(rank);
    const names = ["have", "culprit", "count"];
    const compared = same.filter(({ rank, fields }) => rank !== null && names.every((one) => one in fields));
    if (compared.length) {
      const values = new Map(compared.map((event) => [event.rank, event.fields.have]));
      for (const { fields } of compared) values.set(Number(fields.culprit), fields.count);
      return decision(rule, oddOnes(values), one);
    }
    // The calls of the ranks do not fit: which one is odd?
    if (rule.ranks === "none" && numbers(log.ranks).every((rank) => roots.has(rank))) return decision(rule, null, one);
    // All say so, and it tells nothing of any of them.
    if (rule.role === "vague" && numbers(log.ranks).every((rank) => roots.has(rank))) return decision(rule, null, one);
    return decision(rule, roots.size ? numbers(roots) : null, one);
  }

  function ranksOfKind(log, rule) {
    if (rule.ranks === "all") return numbers(log.ranks);
    const visible = log.values.visible;
    if (rule.ranks === "beyond visible" && visible) {
      const count = visible.split(",").length;
      const perNode = Math.max(log.perNode, log.perNode === 1 ? log.ranks.size : 1);
      return numbers(log.ranks).filter((rank) => rank % perNode >= count);
    }
    return [];
  }

  function endedLike(log, events, role) {
    const killed = [...log.exits].filter(([, code]) => KILLED.includes(code)).map(([rank]) => rank);
    if (killed.length) return role === "killed" ? killed : [];
    const waited = events.filter((event) => ["waited", "lost"].includes(event.rule.role));
    const spoken = new Set(waited.map((event) => event.rank));
    const failed = [...log.exits.keys()].filter((rank) => log.exits.get(rank) > 0 && !spoken.has(rank));
    if (role === "killed") {
      const heard = new Set(events.map((event) => event.rank));
      const silent = numbers(log.ranks).filter((rank) => !heard.has(rank) && !log.exits.has(rank));
      if (silent.length === 1 || log.ranks.size === 1) return silent;
    }
    const aborted = [...log.exits].filter(([, code]) => ABORTED.includes(code)).map(([rank]) => rank);
    if (!failed.length && aborted.length === 1) return aborted;
    return failed.length === 1 ? failed : [];
  }

  function sameEnd(log, events, roots) {
    const codes = new Set([...roots].map((rank) => log.exits.get(rank)));
    const spoken = new Set(events.map((event) => event.rank));
    const alike = [...log.exits].filter(([, code]) => codes.has(code) && code > 0);
    return alike.map(([rank]) => rank).filter((rank) => !spoken.has(rank));
  }

  function fromCollectives(log, all) {
    const timedOut = ofUsualGroup(all);
    const sequences = new Map([...timedOut].map(([rank, known]) => [rank, Number(known.sequence)]));
    const low = Math.min(...sequences.values());
    const values = { ...timedOut.values().next().value };
    values.reporters = name(numbers(timedOut.keys()));
    const culprit = log.values.culprit;
    if (low < Math.max(...sequences.values()) && culprit === undefined) {
      const behind = numbers(sequences.keys()).filter((rank) => sequences.get(rank) === low);
      return decision(OUTCOMES.behind, behind, null, { ...values, ...timedOut.get(behind[0]) });
    }
    const calls = new Map();
    for (const [rank, known] of timedOut)
      calls.set(rank, `${known.operation} of ${sizeOf(known)} elements`);
    if (new Set(calls.values()).size > 1) return fromOtherCalls(calls, culprit, values);
    const silent = numbers(log.ranks).filter((rank) => {
      const aborted = ABORTED.includes(log.exits.get(rank));
      return !("sequence" in (log.collectives.get(rank) ?? {})) && !aborted;
    });
    if (silent.length && silent.length <= log.ranks.size / 2) return decision(OUTCOMES.silent, silent, null, values);
    if (silent.length) return decision(OUTCOMES.one_missing, null, null, values);
    return decision(OUTCOMES.below_the_script, null, null, values);
  }

  /** The number of elements, or the shape, in what the watchdog said of a collective. */
  function sizeOf(known) {
    return String(known.size || (known.shape ?? "?"));
  }

  function ofUsualGroup(timedOut) {
    const groups = [...timedOut.values()].map((known) => known.group).filter(Boolean);
    if (!groups.length) return timedOut;
    const count = (group) => groups.filter((one) => one === group).length;
    const usual = first([...new Set(groups)].sort(), (a, b) => count(b) - count(a));
    return new Map([...timedOut].filter(([, known]) => (known.group ?? usual) === usual));
  }

  function fromOtherCalls(calls, culprit, values) {
    const words = groupsOf(calls).map(([call, ranks]) => `${name(ranks)} in ${call}`);
    const odd = culprit === undefined ? oddOnes(calls) : [Number(culprit)];
    values.calls = words.join(", ");
    values.odd = odd ? `${name(odd)} differs from the others` : "which of them is wrong, only the code says";
    return decision(OUTCOMES.other_call, odd, null, values);
  }

  /** [value, ranks] for each value, in the order of the ranks. */
  function groupsOf(values) {
    const groups = new Map();
    for (const rank of numbers(values.keys())) {
      const value = values.get(rank);
      if (!groups.has(value)) groups.set(value, []);
      groups.get(value).push(rank);
    }
    return [...groups];
  }

  function oddOnes(values) {
    const groups = groupsOf(values).map(([, ranks]) => ranks).sort((a, b) => a.length - b.length);
    if (groups.length < 2 || groups.at(-1).length === groups.at(-2).length) return null;
    return numbers(groups.slice(0, -1).flat());
  }

  function fromWaiting(log, events) {
    const named = (event) => ("culprit" in event.fields ? 1 : 0);
    const one = first(events, (a, b) => named(b) - named(a) || b.rule.weight - a.rule.weight);
    const noticed = new Set(events.map((event) => event.rank));
    const culprits = one.fields.culprit ? expand(one.fields.culprit) : [];
    // If the rank that the others name waited, too, it is not the cause.
    if (one.fields.culprit && culprits.every((rank) => noticed.has(rank))) return decision(one.rule, null, one);
    if (one.fields.culprit) return decision(one.rule, numbers(culprits), one);
    const silent = numbers(log.ranks).filter((rank) => !noticed.has(rank));
    const isHeard = (rank) => log.exits.has(rank) || log.lastWords.has(rank);
    const unknown = silent.length > 1 && !silent.some(isHeard); // perhaps their logs are missing
    if (silent.length && silent.length <= Math.max(1, Math.floor(log.ranks.size / 2)) && !unknown) {
      const outcome = one.rule.role === "lost" ? OUTCOMES.left : OUTCOMES.absent;
      return decision(outcome, silent, one, { page: one.rule.page });
    }
    const timedOut = events.filter((event) => event.rule.role === "waited");
    const waiting = new Set(timedOut.map((event) => event.rank));
    if (log.ranks.size > 1 && numbers(log.ranks).every((rank) => waiting.has(rank))) return allWaited(timedOut);
    return decision(one.rule, null, one);
  }

  function allWaited(events) {
    const where = new Map();
    for (const event of events) if (event.rank !== null) where.set(event.rank, event.where || "an unknown line");
    const places = groupsOf(where);
    const words = places.map(([place, ranks]) => `${name(ranks)} at ${place}`);
    const outcome = places.length === 1 ? OUTCOMES.all_waited : OUTCOMES.all_waited_elsewhere;
    return decision(outcome, null, events[0], { places: words.join(", ") });
  }

  function name(ranks) {
    if (ranks.length === 1) return `rank ${ranks[0]}`;
    if (ranks.length > 20) return `${ranks.length} ranks (${ranks.slice(0, 3).join(", ")}, ..., ${ranks.at(-1)})`;
    return `ranks ${ranks.slice(0, -1).join(", ")} and ${ranks.at(-1)}`;
  }

  // ------------------------------------------------ explain.py: the words

  const DID = { cause: "failed", killed: "ended from outside", lost: "lost the connection", waited: "waited" };
  const MISSING = ["silent", "behind", "absent", "left"];
  const MOST_SECONDS = 20 * 3600; // a longer log went past midnight, and its times begin again

  function explain(files) {
    const found = decide(readLogs(files));
    const place = placeOf(found);
    const values = valuesOf(found, place);
    const [means, next] = sentencesOf(found, values);
    return {
      exit: found.log.blank ? 2 : exitCode(found),
      what: fill(found.rule.title, values),
      ranks: found.ranks,
      line: place,
      cause: causeOf(found, place),
      states: statesOf(found),
      follows: followsOf(found),
      telling: tellingOf(found),
      means,
      also: notesOf(found),
      next,
      sure: sureOf(found),
      others: found.event ? found.event.others : [],
      page: pageOf(found),
      life: lifeOf(found.log),
    };
  }

  /** The last sign of life of each rank, for the lanes -> {clocked, low, high, ends: {rank: line}}.

      It goes by the clock if these lines have one, and otherwise by their order. Null if neither says
      which rank was last: lines of several files without a clock have no common order. */
  function lifeOf(log) {
    const lines = [];
    for (const line of log.lastLines.values()) {
      const rank = line.rank ?? (log.tasksAreNodes ? null : line.task);
      if (rank !== null) lines.push([rank, line]);
    }
    // A line of a script may name its rank in words, without a prefix.
    for (const [rank, line] of log.lastWords) if (rank !== null && !line.isReport) lines.push([rank, line]);
    for (const [line] of log.notable) if (line.rank !== null && !line.isReport) lines.push([line.rank, line]);
    const overMidnight = log.span.high - log.span.low > MOST_SECONDS;
    const clocked = !overMidnight && lines.every(([, line]) => line.time !== null);
    const low = clocked ? log.span.low : 0;
    const high = clocked ? log.span.high : log.span.position;
    const files = new Set(lines.map(([, line]) => line.file));
    if (!lines.length || high === low || (!clocked && files.size > 1)) return null;
    const at = (line) => (clocked ? line.time : line.position);
    const ends = {};
    for (const [rank, line] of lines) if (!ends[rank] || at(ends[rank]) <= at(line)) ends[rank] = line;
    return { clocked, low, high, ends };
  }

  const fill = (sentence, values) => sentence.replace(/\{(\w+)\}/g, (_, key) => values[key] ?? "?");
  const isNone = (found) => found.ranks !== null && found.ranks.length === 0;

  function pageOf(found) {
    if (found.event && found.event.page) return found.event.page;
    return found.values.page || found.rule.page || null;
  }

  function exitCode(found) {
    if (isNone(found)) return 0;
    return found.ranks || found.rule.role === "setup" || found.rule.ranks === "none" ? 1 : 2;
  }

  function placeOf(found) {
    const roots = found.ranks ?? [];
    const { event, log } = found;
    if (event && event.where && (!roots.length || event.rank === null || roots.includes(event.rank))) return event.where;
    for (const rank of roots) if (log.stacks.has(rank)) return log.stacks.get(rank);
    return found.events.find((one) => roots.includes(one.rank) && one.where)?.where ?? null;
  }

  function causeOf(found, place) {
    const { log } = found;
    if (isNone(found)) {
      const ended = [...log.tails.values()].some((tail) => tail.end);
      return ended ? "none; no rank failed" : "none is seen in this log";
    }
    const waiting = found.events.filter((event) => event.where).map((event) => event.where);
    for (const rank of numbers(log.stacks.keys())) waiting.push(log.stacks.get(rank));
    if (found.ranks) {
      const words = name(found.ranks);
      if (place) return `${words}, ${place}`;
      if (waiting.length) return `${words} (its line is not in the log; the others were at ${waiting[0]})`;
      return words;
    }
    let words = "unknown; this log does not show which rank it was";
    const process = log.torn ? "of this report" : "that printed this";
    if (!log.ranks.size) words = `the process ${process} (no line names a rank)`;
    if (found.rule.ranks === "none") words = "no single rank";
    words = found.rule.nobody || words;
    if (found.rule.role === "setup") words = "no rank";
    if (place) return `${words}, ${place}`;
    return waiting.length ? `${words}; seen at ${waiting[0]}` : words;
  }

  function valuesOf(found, place) {
    const { log, event } = found;
    const values = { ...log.values, ...found.values };
    if ("size" in values) values.size = sizeOf(values);
    if (event) {
      Object.assign(values, event.fields);
      values.message = short(event.message, 300);
      values.during = event.during ? ` ${event.during}` : "";
    }
    const roots = found.ranks ?? [];
    const reporting = new Set();
    for (const one of found.events) if (event && one.rule === event.rule && one.rank !== null) reporting.add(one.rank);
    const single = roots.length <= 1;
    values.was = single ? "was" : "were";
    values.has = single ? "has" : "have";
    values.verb = single ? "is" : "are";
    values.ranks = "a rank that the log does not name";
    if (roots.length || reporting.size) values.ranks = name(roots.length ? roots : numbers(reporting));
    const others = isNone(found) ? [] : numbers(log.ranks).filter((rank) => !roots.includes(rank));
    values.others = others.length ? name(others) : "the others";
    values.where = place || "a line that is not in the log";
    return values;
  }

  function statesOf(found) {
    if (isNone(found)) return [];
    let rows = rowsOf(found, true);
    if (rows.length > 5 && !(found.ranks ?? []).length) rows = rowsOf(found, false);
    const roots = found.ranks ?? [];
    const isOther = ([ranks]) => (ranks.some((rank) => roots.includes(rank)) ? 0 : 1);
    rows.sort((a, b) => isOther(a) - isOther(b));
    if (rows.length <= 5) return rows;
    const rest = numbers(rows.slice(4).flatMap(([ranks]) => ranks));
    return [...rows.slice(0, 4), [rest, "other states; see their own lines"]];
  }

  function rowsOf(found, words) {
    const groups = new Map();
    for (const rank of numbers(found.log.ranks)) {
      const state = stateOf(found, rank, words);
      if (!groups.has(state)) groups.set(state, []);
      groups.get(state).push(rank);
    }
    return [...groups].map(([state, ranks]) => [ranks, state]);
  }

  function stateOf(found, rank, lastWords) {
    const { log } = found;
    const words = [];
    const known = log.collectives.get(rank) ?? {};
    let own = found.events.filter((event) => event.rank === rank && isFailure(event));
    if ("sequence" in known) own = own.filter((event) => !["waited", "vague"].includes(event.rule.role));
    if (own.length) {
      const event = first(own, (a, b) => b.rule.weight - a.rule.weight);
      const place = (event.during ? ` ${event.during}` : "") + (event.where ? ` at ${event.where}` : "");
      words.push(`${DID[event.rule.role] ?? "reported"}${place}: ${short(event.message, 110)}`);
    }
    if ("sequence" in known) words.push(waitedWords(log, rank, known));
    else if ("enqueued" in known)
      words.push(`had enqueued ${known.enqueued} and completed ${known.completed}, no timeout of its own`);
    const code = log.exits.get(rank);
    if (STOPPED.includes(code) && !own.length) words.push("stopped by the launcher afterwards (SIGTERM)");
    else if (code !== undefined) words.push(`exit code ${code}`);
    const last = log.lastWords.get(rank);
    const blamed = found.ranks === null || found.ranks.includes(rank);
    if (last && lastWords && blamed && !own.length)
      words.push(`last printed "${short(last.text, 120)}" (${last.file}:${last.number}${ago(log, last)})`);
    return words.join("; ") || "printed nothing that tells more";
  }

  function followsOf(found) {
    if (!(found.ranks ?? []).length) return "";
    const after = new Set(found.log.collectives.keys());
    for (const event of found.events) if (["waited", "lost", "vague"].includes(event.rule.role)) after.add(event.rank);
    for (const [rank, code] of found.log.exits) if ([...STOPPED, ...ABORTED].includes(code)) after.add(rank);
    const ranks = numbers(after).filter((rank) => !found.ranks.includes(rank));
    return ranks.length ? `What ${name(ranks)} reported came afterwards and is a consequence.` : "";
  }

  /** Python's round(value, 1), where a quarter is a tie that goes to the even digit below. */
  const tenths = (value) => (value % 1 === 0.25 ? Math.floor(value * 10) / 10 : Number(value.toFixed(1)));

  function waitedWords(log, rank, known) {
    const minutes = tenths(Number(known.timeout) / 60000);
    const place = log.stacks.has(rank) ? ` at ${log.stacks.get(rank)}` : "";
    return `waited ${minutes} minutes in ${known.operation} number ${known.sequence} (${sizeOf(known)} elements)${place}`;
  }

  function ago(log, last) {
    const times = [...log.collectives.values()].map((known) => known.line.time).filter((time) => time !== null);
    const earliest = Math.min(...times);
    if (last.time === null || !times.length || earliest <= last.time) return "";
    return `, ${Math.floor((earliest - last.time) / 60 + 0.5)} minutes before the timeout`;
  }

  function tellingOf(found) {
    const { log, event } = found;
    const lines = [];
    if (isNone(found)) return [];
    if (event) {
      lines.push([event.line, event.message]);
      for (const one of found.events) {
        const same = one.rank === event.rank && one.line !== event.line;
        if (same && lines.length < 2 && ["cause", "setup", "killed", "vague"].includes(one.rule.role))
          lines.push([one.line, one.message]);
      }
    }
    for (const rank of [...(found.ranks ?? []), null]) {
      const complaint = log.complaints.get(rank);
      if (complaint && lines.length < 2) lines.push([complaint, complaint.text]);
    }
    if (!lines.length && found.rule === OUTCOMES.complaint) {
      const complaint = log.complaints.values().next().value;
      lines.push([complaint, complaint.text]);
    }
    const timeouts = [...log.collectives.values()].map((known) => known.line);
    for (const line of timeouts.sort((a, b) => a.position - b.position))
      if (lines.length < 2) lines.push([line, line.text]);
    const unique = new Map();
    for (const [line, message] of lines) {
      const key = `${line.file}:${line.number}`;
      if (!unique.has(key)) unique.set(key, [line.file, line.number, short(message, 220)]);
    }
    return [...unique.values()];
  }

  function notesOf(found) {
    const notes = [];
    for (const [fact, line, fields] of found.log.hints)
      if (["", found.rule.role].includes(fact.bears_on))
        notes.push([line, fill(fact.meaning, { ...found.log.values, ...fields }), ""]);
    // A warning matters to somebody who wonders about it, and not to a run that failed.
    for (const { line, rule } of isNone(found) ? found.notes : [])
      notes.push([line, `${rule.title}. ${rule.meaning}`, rule.page]);
    const unique = new Map();
    for (const [line, sentence, page] of notes)
      if (!unique.has(sentence)) unique.set(sentence, [line.file, line.number, sentence, page]);
    return [...unique.values()].slice(0, 3);
  }

  function sentencesOf(found, values) {
    const { rule, log } = found;
    const several = (found.ranks ?? []).length > 1;
    let meaning = rule.length ? rule.meaning : capital(fill(rule.meaning, values));
    let advice = rule.length ? rule.next : fill(rule.next, values);
    const alone = (found.ranks ?? []).length === 1 && log.ranks.size > 1;
    if (rule === OUTCOMES.exception && alone)
      advice += " Look at what only this rank has: its part of the data, its node, its device.";
    if (several && rule.role === "cause")
      meaning += " It is the same on all of these ranks, so no single rank is special.";
    const line = found.event?.line;
    const ended = line && hadEnded(log, line.file, line.position);
    if (ended && rule !== OUTCOMES.after_the_end)
      meaning += " A line before it says that the training had ended, so its results are there.";
    const missing = found.event?.rule.role === "waited" && rule.role === "waited" && (found.ranks ?? []).length;
    if (!MISSING.some((one) => OUTCOMES[one] === rule) && !missing) return [meaning, advice];
    // What the first of the missing ranks that printed something printed last.
    const heard = [...found.ranks, null].find((rank) => log.lastWords.has(rank));
    if (heard === undefined) return [meaning, advice];
    const last = log.lastWords.get(heard);
    if (heard === null)
      meaning += ` Perhaps this was its last line, which names no rank: "${short(last.text, 100)}" (${last.file}:${last.number}).`;
    for (const activity of RULES.activities)
      if (regex(activity.pattern, "").test(last.text))
        return [`${meaning} ${capital(fill(activity.meaning, values))}`, activity.next];
    return [meaning, advice];
  }

  function sureOf(found) {
    const { rule } = found;
    if (isNone(found)) return "";
    if (rule.sure) return rule.sure;
    if (rule.role === "vague") return "no; this message says that something failed, and not what";
    if (rule.role === "setup")
      return "the message is known, and no single rank is to blame; the reason is the usual one";
    if (!(found.ranks ?? []).length) return "the message is known; which rank was first is not in this log";
    const known = rule === OUTCOMES.exception ? "line" : "message";
    if (found.ranks.length > 1)
      return `the ${known}, yes; several ranks raised it, so its reason may be what they share`;
    if (rule === OUTCOMES.exception) return "the rank and the line, yes; the reason is in the script";
    return "the rank and the message, yes; the reason is the usual one of this message";
  }

  const capital = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);

  function short(text, size = 170) {
    const characters = [...text.trim().split(/\s+/).join(" ")];
    return characters.length <= size ? characters.join("") : characters.slice(0, size - 3).join("") + "...";
  }

  return { load, explain, bestFirst, messagesOf, name, readLogs };
})();

if (typeof module !== "undefined") module.exports = Explain;
