// Pagefind finds the pages that have all words. A pasted line of a log has words that no page has, such
// as numbers and paths, and a question has words that the right page lacks. So each word is searched for
// alone, and the scores of a page are added. Pagefind gives a rare word a higher score than a frequent
// one. A page where many of the words stand close together counts up to twice as much. Pagefind's dialog
// loads this file in place of its own: see layout.html.

import { createInstance as createPagefind } from "../../pagefind/pagefind.js";

const RANKING = { termSimilarity: 3 }; // the default is 1: a word counts more than words that begin with it
const DAMPING = 0.6; // a power: no page is first because it repeats one of the words most often
const CLOSE = 12; // words, in which the others have to stand
const MOST_PAGES = 20;
const RAREST = 5; // words, which choose the sections of a page
const SAYS_LITTLE = /^([A-Z][a-z]+)?(Error|Warning)$/; // such as "RuntimeError"
const CHINESE_WORD = /^\p{Script=Han}{2,}$/u;
const BETWEEN_WORDS = /[\s.:;,'"`()[\]{}<>=/]+/;

export function createInstance(options) {
  const pagefind = createPagefind({ ...options, ranking: RANKING });
  return { ...pagefind, search: (text, settings) => search(pagefind, text, settings) };
}

async function search(pagefind, text, settings) {
  const typed = text?.split(BETWEEN_WORDS).filter((word) => /\p{L}{2}/u.test(word)) ?? [];
  const words = new Set(typed.filter((word) => !SAYS_LITTLE.test(word)));
  const whole = await pagefind.search(text, settings);
  // The browser may cut a Chinese word that Pagefind has not cut. Then its first character finds it.
  if (whole.results.length === 0 && CHINESE_WORD.test(text)) return pagefind.search(text[0], settings);
  if (words.size < 2) return whole;
  const searches = await Promise.all([...words].map((word) => pagefind.search(word, settings)));
  const found = searches.map((one) => one.results);
  found.sort((a, b) => a.length - b.length); // rare words first
  const pages = new Map();
  for (const result of found.flat()) {
    const page = pages.get(result.id) ?? { ...result, score: 0, parts: [] };
    page.score += result.score ** DAMPING;
    page.parts.push(result);
    page.data = () => withSections(page.parts.slice(0, RAREST));
    pages.set(result.id, page);
  }
  const best = [...pages.values()];
  const weights = found.map((results) => Math.log(1 + pages.size / Math.max(results.length, 1)));
  for (const page of best) page.score *= 1 + closeness(page.id, found, weights);
  best.sort((a, b) => b.score - a.score);
  return { ...whole, results: best.slice(0, MOST_PAGES) };
}

/** The part of the words, by weight, that stand close together at one place of a page. */
function closeness(id, found, weights) {
  const places = [];
  for (const [word, results] of found.entries()) {
    const here = results.find((result) => result.id === id)?.words ?? [];
    places.push(...here.map((at) => ({ word, at })));
  }
  places.sort((a, b) => a.at - b.at);
  let most = 0;
  for (const [number, first] of places.entries()) {
    const words = new Set();
    for (let i = number; i < places.length && places[i].at - first.at <= CLOSE; i++) {
      words.add(places[i].word);
    }
    const weight = [...words].reduce((sum, word) => sum + weights[word], 0);
    most = Math.max(most, weight);
  }
  const all = weights.reduce((sum, weight, word) => sum + (found[word].length ? weight : 0), 0);
  return most / all;
}

/** The data of a page. Pagefind's dialog shows the sections with the longest lists of places. Here such
    a list is long if the section has many of the words, and rare ones. parts: rare words first. */
async function withSections(parts) {
  const sections = new Map();
  let rarest;
  for (const [number, part] of parts.entries()) {
    // One after the other: the data of a page are one object, which each word fills again.
    const data = { ...(await part.data()) };
    rarest ??= data;
    for (const section of data.sub_results) {
      const known = sections.get(section.url) ?? { ...section, locations: [] };
      known.locations.push(...Array(RAREST - number).fill(section.locations[0]));
      sections.set(section.url, known);
    }
  }
  const best = [...sections.values()].sort((a, b) => b.locations.length - a.locations.length);
  return { ...rarest, sub_results: best };
}
