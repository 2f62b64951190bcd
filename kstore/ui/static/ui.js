// A page whose numbers are not all known is fetched again until they are; a live page adds the records that events
// bring. Texts come escaped for people, and go into the page as text alone.
"use strict";

const REFRESH_MS_MAX = 8000;
const ROWS_MAX = 500;

// The same link or button has the focus afterwards, and what was unfolded is unfolded.
function replaceMain(fresh) {
  const old = document.querySelector("main");
  const nameOf = (element) => `${element.tagName} ${element.getAttribute("href")} ${element.textContent}`;
  const focused = old.contains(document.activeElement) ? nameOf(document.activeElement) : null;
  const opened = new Set([...old.querySelectorAll("details[open] > summary")].map(nameOf));
  old.replaceWith(fresh);
  for (const summary of fresh.querySelectorAll("summary")) {
    if (opened.has(nameOf(summary))) summary.parentElement.open = true;
  }
  if (focused === null) return;
  const same = [...fresh.querySelectorAll("a, button, summary, [tabindex]")].find((each) => nameOf(each) === focused);
  if (same) same.focus({ preventScroll: true });
}

async function refresh(delay) {
  const response = await fetch(location.href);
  if (!response.ok) return;
  const fresh = new DOMParser().parseFromString(await response.text(), "text/html").querySelector("main");
  const typing = document.activeElement && document.activeElement.tagName === "INPUT";
  if (!typing) replaceMain(fresh);
  if (typing || "pending" in fresh.dataset) {
    setTimeout(() => refresh(Math.min(delay * 1.5, REFRESH_MS_MAX)), delay);
  }
}

function addCell(row, text, left) {
  const cell = row.insertCell();
  if (left) cell.className = "left wrap mono";
  cell.textContent = text;
  return cell;
}

function addRecord(row, record) {
  row.className = "new";
  const link = document.createElement("a");
  link.href = record.url;
  link.textContent = record.offset;
  row.insertCell().append(link);
  addCell(row, record.time, true);
  addCell(row, record.key, true);
  addCell(row, record.value, true);
}

// A search that is interrupted is not begun again by itself.
function search(state) {
  const table = document.getElementById("records");
  const stop = document.getElementById("stop");
  const source = new EventSource(state.dataset.search);
  const end = (text) => {
    source.close();
    stop.hidden = true;
    state.textContent = text;
  };
  const show = (event) => {
    const found = JSON.parse(event.data);
    for (const record of found.records) {
      const row = table.insertRow(-1);
      addCell(row, record.log, true);
      addRecord(row, record);
    }
    state.textContent = found.text;
    return found.text;
  };
  source.onopen = () => { stop.hidden = false; };
  source.onmessage = show;
  source.addEventListener("end", (event) => end(show(event)));
  source.onerror = () => end("The search ended: the server does not answer.");
  stop.onclick = () => end(`${state.textContent.replace(/ …$/, ".")} The search was stopped.`);
}

function follow(state) {
  const table = document.getElementById("records");
  const source = new EventSource(state.dataset.events);
  source.onmessage = (event) => {
    const found = JSON.parse(event.data);
    for (const record of found.records) {
      const row = table.insertRow(0);
      addRecord(row, record);
      addCell(row, record.headers || "", false);
    }
    while (table.rows.length > ROWS_MAX) table.deleteRow(-1);
    const left = found.left_out ? `; ${found.left_out} records came too fast to be listed` : "";
    state.textContent = `Following. The log ends at offset ${found.end}${left}.`;
  };
  source.addEventListener("problem", (event) => {
    state.textContent = JSON.parse(event.data);
    source.close();
  });
  source.onopen = () => { state.textContent = "Following."; };
  source.onerror = () => { state.textContent = "The server does not answer."; };
}

const main = document.querySelector("main");
if ("pending" in main.dataset) setTimeout(() => refresh(700), 500);
const followed = document.querySelector("[data-events]");
if (followed) follow(followed);
const searched = document.querySelector("[data-search]");
if (searched) search(searched);
