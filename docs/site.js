// The documentation site: names and a place in the tab order for what the theme leaves without.
"use strict";

let named = 0;

function mend() {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .highlight code")) box.tabIndex = 0;
  // A landmark needs a name of its own; the theme names several menus alike, and the buttons of examples not at all.
  for (const part of document.querySelectorAll("nav.md-code__nav, nav.md-nav")) {
    if (part.dataset.named) continue;
    part.dataset.named = ++named;
    const label = document.getElementById(part.getAttribute("aria-labelledby"))?.innerText.trim();
    part.setAttribute("aria-label", `${label || part.getAttribute("aria-label") || "Example"} (${named})`);
    part.removeAttribute("aria-labelledby");
  }
  for (const head of document.querySelectorAll("th:empty")) head.replaceWith(document.createElement("td"));
  for (const [id, name] of [["__search", "Search"], ["__drawer", "Menu"]])
    document.getElementById(id)?.setAttribute("aria-label", name);
  document.querySelector(".md-search[role='dialog']")?.setAttribute("aria-label", "Search");
}

new MutationObserver(mend).observe(document.documentElement, { childList: true, subtree: true });
document.addEventListener("DOMContentLoaded", mend);
