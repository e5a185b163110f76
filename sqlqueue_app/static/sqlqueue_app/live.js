// Keeps a page of the dashboard up to date: requests it every few seconds and updates the changed parts in place. Checked, typed,
// focused, opened, selected and scrolled elements keep their state. A hidden tab sends no requests. Without this module, the page
// has a link to refresh it.

const LONGEST_WAIT_SECONDS = 60;
// State that belongs to the user, not to the server.
const OWN_ATTRIBUTES = { DETAILS: ["open"], INPUT: ["value", "checked"], TEXTAREA: ["value"], OPTION: ["selected"],
    // set by charts.js
    svg: ["role", "tabindex", "aria-hidden", "aria-label", "aria-valuemin", "aria-valuemax", "aria-valuenow", "aria-valuetext"] };

const content = document.querySelector("[data-live]");
if (content) {
    start(content);
}

function start(content) {
    const every = Math.max(1, Number(content.dataset.live) || 10);
    const state = { every, wait: every, paused: false, etag: null, timer: null, request: null };
    const line = statusLine(content, state, () => schedule(content, state, line));
    document.addEventListener("visibilitychange", () => schedule(content, state, line));
    schedule(content, state, line);
}

function schedule(content, state, line) {
    clearTimeout(state.timer);
    if (state.paused || document.hidden || !state.every) {
        state.request?.abort();
        return;
    }
    state.timer = setTimeout(() => refresh(content, state, line), state.wait * 1000);
}

async function refresh(content, state, line) {
    state.request = new AbortController();
    let problem = content.dataset.liveStale;
    try {
        const headers = { "Sqlqueue-Live": content.dataset.liveMade, ...(state.etag ? { "If-None-Match": state.etag } : {}) };
        const answer = await fetch(location.href, { headers, cache: "no-store", redirect: "manual", signal: state.request.signal });
        if (answer.type === "opaqueredirect") {
            // to the login page
            problem = content.dataset.liveSignedOut;
            throw new Error("redirected");
        }
        let made = answer.headers.get("Sqlqueue-Made");
        if (answer.status === 200) {
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const fresh = page.getElementById(content.id);
            if (fresh && !isSelecting(content)) {
                morph(content, fresh);
                updateBadges(page);
                document.dispatchEvent(new Event("sq-refreshed"));
                state.etag = answer.headers.get("ETag");
                state.every = Number(content.dataset.live) || 0;
            } else {
                made = null;
            }
        } else if (answer.status !== 304 && answer.status !== 204) {
            throw new Error(`HTTP ${answer.status}`);
        }
        if (!state.every) {
            // The page is final, such as that of a completed operation.
            line.parentElement.remove();
            return;
        }
        state.wait = state.every;
        // The server keeps the page for a while for all users; 204 means that its copy is older than ours.
        content.dataset.liveMade = made ?? content.dataset.liveMade;
        show(line, content);
    } catch (error) {
        if (error.name === "AbortError") {
            return;
        }
        state.wait = Math.min(state.wait * 2, LONGEST_WAIT_SECONDS);
        show(line, content, problem, "sq-state sq-warning");
    }
    schedule(content, state, line);
}

// The navigation is outside of the content.
function updateBadges(page) {
    for (const fresh of page.querySelectorAll("[data-counted]")) {
        const badge = document.getElementById(fresh.id);
        if (badge) {
            morph(badge, fresh);
        }
    }
}

// --- the status line with the age of the page ---------------------------------------------------------------------------------

function statusLine(content, state, changed) {
    const line = document.createElement("p");
    line.className = "sq-live sq-quiet";
    const text = document.createElement("span");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sq-button";
    button.textContent = content.dataset.livePause;
    button.addEventListener("click", () => {
        state.paused = !state.paused;
        button.textContent = state.paused ? content.dataset.liveResume : content.dataset.livePause;
        state.wait = state.paused ? state.every : 0;
        show(text, content, state.paused ? content.dataset.livePaused : "");
        changed();
    });
    line.append(text, " ", button);
    content.before(line);
    return text;
}

// The age of the page, behind these words.
function show(line, content, words = "", css = "") {
    line.textContent = `${words} ${content.dataset.liveFresh} ${timeOf(content)}`.trim();
    line.className = css;
}

// By the clock and time zone of the page; the browser may use another one.
function timeOf(content) {
    return new Date((Number(content.dataset.liveMade) + Number(content.dataset.liveOffset)) * 1000).toISOString().slice(11, 19);
}

function isSelecting(content) {
    const selection = document.getSelection();
    return Boolean(selection && !selection.isCollapsed && content.contains(selection.anchorNode));
}

// --- updating the changed parts -----------------------------------------------------------------------------------------------

function morph(old, fresh) {
    morphAttributes(old, fresh);
    const kept = new Map();
    for (const child of old.children) {
        const key = keyOf(child);
        if (key) {
            kept.set(key, child);
        }
    }
    let place = old.firstChild;
    for (const wanted of [...fresh.childNodes]) {
        const known = kept.get(keyOf(wanted)) ?? (isAlike(place, wanted) ? place : null);
        if (!known) {
            old.insertBefore(document.importNode(wanted, true), place);
            continue;
        }
        if (known === place) {
            place = place.nextSibling;
        } else {
            old.insertBefore(known, place);
        }
        if (known.nodeType === Node.ELEMENT_NODE) {
            morph(known, wanted);
        } else if (known.nodeValue !== wanted.nodeValue) {
            known.nodeValue = wanted.nodeValue;
        }
    }
    while (place) {
        const next = place.nextSibling;
        place.remove();
        place = next;
    }
}

function keyOf(node) {
    return node.nodeType === Node.ELEMENT_NODE ? node.dataset?.key || node.id || null : null;
}

function isAlike(old, fresh) {
    return Boolean(old) && old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName && !keyOf(old) && !keyOf(fresh);
}

function morphAttributes(old, fresh) {
    const own = OWN_ATTRIBUTES[old.tagName] ?? [];
    for (const { name } of [...old.attributes]) {
        if (!fresh.hasAttribute(name) && !own.includes(name)) {
            old.removeAttribute(name);
        }
    }
    for (const { name, value } of [...fresh.attributes]) {
        if (old.getAttribute(name) !== value && !own.includes(name)) {
            old.setAttribute(name, value);
        }
    }
}
