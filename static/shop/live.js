// Keeps the list of orders up to date. Without this script, the page has a link to refresh it.
"use strict";

const choice = document.getElementById("live");
const MILLISECONDS = 2000;

async function refresh() {
  if (choice.checked && !document.hidden) {
    try {
      const response = await fetch(location.pathname);
      if (response.ok) {
        const page = new DOMParser().parseFromString(await response.text(), "text/html");
        document.getElementById("orders").replaceWith(page.getElementById("orders"));
      }
    } catch {
      // the site is unavailable; the next request may reach it
    }
  }
  setTimeout(refresh, MILLISECONDS);
}

document.getElementById("live-choice").hidden = false;
setTimeout(refresh, MILLISECONDS);
