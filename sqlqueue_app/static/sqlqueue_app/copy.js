// Adds a copy button to each element with data-copy-from, for the text of the element with that id. Without this module, users can
// select and copy the text.

for (const place of document.querySelectorAll("[data-copy-from]")) {
    const source = document.getElementById(place.dataset.copyFrom);
    if (!source) {
        continue;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sq-button";
    button.textContent = place.dataset.copyLabel;
    const status = document.createElement("span");
    status.setAttribute("role", "status");
    status.className = "sq-quiet";
    button.addEventListener("click", async () => {
        const copied = await copy(source.textContent);
        status.textContent = copied ? place.dataset.copied : place.dataset.copyRefused;
    });
    place.append(button, " ", status);
}

async function copy(text) {
    try {
        // Available only to pages over HTTPS or from localhost.
        await navigator.clipboard.writeText(text);
        return true;
    } catch {
        return copyBySelection(text);
    }
}

function copyBySelection(text) {
    const field = document.createElement("textarea");
    field.value = text;
    field.className = "sq-hidden";
    document.body.append(field);
    const focused = document.activeElement;
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    focused?.focus();
    return copied;
}
