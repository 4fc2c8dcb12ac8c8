// Finds the entries of errors.html whose fixed words stand, in their order, in the text that is pasted.
"use strict";

const MOST = 5;
const plain = (text) => text.toLowerCase().replace(/\s+/g, " ").trim();

// How much of an entry's fixed text a pasted text has: letters that are there, and their share of all.
function likeness(pieces, pasted) {
  let from = 0;
  let there = 0;
  let all = 0;
  for (const piece of pieces) {
    all += piece.length;
    const at = pasted.indexOf(piece, from);
    if (at >= 0) {
      there += piece.length;
      from = at + piece.length;
    }
  }
  return { there, share: all ? there / all : 0 };
}

function found(entries, text) {
  const pasted = plain(text);
  return entries
    .map((entry) => ({ ...entry, ...likeness(entry.pieces, pasted) }))
    .filter((entry) => entry.there >= 8 && entry.share >= 0.5)
    .sort((one, other) => other.there * other.share - one.there * one.share)
    .slice(0, MOST);
}

const piecesOf = (text) => text.split("…").map(plain).filter((piece) => piece.length > 2);

function show(box, list, entries) {
  const best = found(entries, box.value);
  list.replaceChildren(
    ...best.map(({ item, section }) => {
      const copy = item.cloneNode(true);
      const name = document.createElement("a");
      name.href = `#${section.id}`;
      name.textContent = section.dataset.name;
      copy.prepend(name, ": ");
      return copy;
    }),
  );
  if (!best.length && plain(box.value).length > 8) {
    list.textContent = "No text of ours is like this one: is the error from another library?";
  }
}

document.addEventListener("DOMContentLoaded", () => {
  const box = document.getElementById("error-text");
  if (!box) return;
  const entries = [...document.querySelectorAll("section section section li")].map((item) => {
    const section = item.closest("section");
    section.dataset.name = section.querySelector("h3").firstChild.textContent;
    const words = item.cloneNode(true);
    words.querySelector("a:last-of-type").remove();
    return { item, section, pieces: piecesOf(words.textContent) };
  });
  box.addEventListener("input", () => show(box, document.getElementById("error-found"), entries));
});
