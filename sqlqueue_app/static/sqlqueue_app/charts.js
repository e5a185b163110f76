// Shows values of charts and sparklines under the pointer and by keyboard: a chart is one tab stop, and the arrow keys move its
// cursor. The server formats the values. Without this module, the table below each chart has the same values.

// In the markup, [data-plot] is a chart or a row of sparklines with one cursor. Its [data-values] are values by position, separated
// by bars; [data-times], there or on an ancestor, are the times; [data-x] the positions in the drawing if they are uneven.
const SEPARATOR = "|";
const box = document.createElement("div");
let shown = null; // { plot, at }: `at` counts from the newest value, whose place does not change when the page refreshes

if (document.querySelector("[data-plot]")) {
    box.className = "sq-reading";
    box.hidden = true;
    // Screen readers use aria-valuetext.
    box.setAttribute("aria-hidden", "true");
    document.body.append(box);
    prepare();
    document.addEventListener("sq-refreshed", prepare);
    document.addEventListener("pointermove", point);
    document.addEventListener("pointerdown", point);
    document.addEventListener("keydown", press);
    document.addEventListener("focusin", (event) => event.target.matches("svg[role=slider]") && show(plotOf(event.target), 0));
    document.addEventListener("focusout", hide);
    document.addEventListener("scroll", () => shown && show(shown.plot, shown.at), { passive: true, capture: true });
}

function plotOf(node) {
    return node instanceof Element ? node.closest("[data-plot]") : null;
}

function drawings(plot) {
    return plot.matches("svg") ? [plot] : [...plot.querySelectorAll("svg:has([data-values])")];
}

function timesOf(plot) {
    return plot.closest("[data-times]").dataset.times.split(SEPARATOR);
}

// The first drawing of each plot takes the focus. A refresh keeps these attributes, which belong to the user.
function prepare() {
    for (const plot of document.querySelectorAll("[data-plot]")) {
        const target = drawings(plot)[0];
        const last = timesOf(plot).length - 1;
        target.removeAttribute("aria-hidden");
        set(target, { role: "slider", tabindex: 0, "aria-label": plot.dataset.plot, "aria-valuemin": 0, "aria-valuemax": last });
        if (!target.hasAttribute("aria-valuenow")) {
            set(target, { "aria-valuenow": last, "aria-valuetext": reading(plot, last).join(", ") });
        }
    }
    if (shown) {
        shown.plot.isConnected ? show(shown.plot, shown.at) : hide();
    }
}

function set(element, attributes) {
    for (const [name, value] of Object.entries(attributes)) {
        element.setAttribute(name, value);
    }
}

function reading(plot, index) {
    const lines = [...plot.querySelectorAll("[data-values]")];
    return [timesOf(plot)[index], ...lines.map((line) => `${line.dataset.name}: ${line.dataset.values.split(SEPARATOR)[index]}`)];
}

function positions(svg, plot) {
    if (plot.dataset.x) {
        return plot.dataset.x.split(SEPARATOR).map(Number);
    }
    const count = timesOf(plot).length;
    return Array.from({ length: count }, (_, index) => (index / Math.max(1, count - 1)) * svg.viewBox.baseVal.width);
}

function point(event) {
    const plot = plotOf(event.target);
    const svg = plot && drawings(plot).find((each) => each.contains(event.target));
    if (!svg) {
        if (shown && document.activeElement !== drawings(shown.plot)[0]) {
            hide();
        }
        return;
    }
    const x = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse()).x;
    const away = positions(svg, plot).map((each) => Math.abs(each - x));
    show(plot, away.length - 1 - away.indexOf(Math.min(...away)), svg);
}

const STEPS = { ArrowLeft: 1, ArrowDown: 1, ArrowRight: -1, ArrowUp: -1, PageDown: 10, PageUp: -10, Home: Infinity, End: -Infinity };

function press(event) {
    if (event.key === "Escape") {
        hide();
    } else if (event.key in STEPS && event.target.matches("svg[role=slider]")) {
        event.preventDefault();
        show(plotOf(event.target), (shown?.at ?? 0) + STEPS[event.key]);
    }
}

function show(plot, at, over) {
    const last = timesOf(plot).length - 1;
    if (shown && shown.plot !== plot) {
        hide();
    }
    shown = { plot, at: Math.min(Math.max(at, 0), last) };
    const index = last - shown.at;
    const words = reading(plot, index);
    set(drawings(plot)[0], { "aria-valuenow": index, "aria-valuetext": words.join(", ") });
    for (const svg of drawings(plot)) {
        svg.querySelector(".sq-cursor").setAttribute("d", `M${positions(svg, plot)[index]} 0v${svg.dataset.height}`);
    }
    box.replaceChildren(...words.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
    box.hidden = false;
    place(over ?? drawings(plot)[0], plot, index);
}

// Next to the cursor, within the window.
function place(svg, plot, index) {
    const corner = new DOMPoint(positions(svg, plot)[index], 0).matrixTransform(svg.getScreenCTM());
    const left = corner.x + 12 + box.offsetWidth > document.documentElement.clientWidth ? corner.x - 12 - box.offsetWidth : corner.x + 12;
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${Math.max(0, Math.min(corner.y, window.innerHeight - box.offsetHeight))}px`;
}

function hide() {
    if (shown) {
        drawings(shown.plot).forEach((svg) => svg.querySelector(".sq-cursor").setAttribute("d", ""));
    }
    shown = null;
    box.hidden = true;
}
