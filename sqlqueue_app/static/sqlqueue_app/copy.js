// Buttons that copy a text of the page: each element with data-copy-from gets one, for the element of that id. Without this module
// the texts can be selected and copied as any other.

for (const place of document.querySelectorAll("[data-copy-from]")) {
    const source = document.getElementById(place.dataset.copyFrom);
    if (!source) {
        continue;
    }
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sq-button";
    button.textContent = place.dataset.copyLabel;
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    said.className = "sq-quiet";
    button.addEventListener("click", async () => {
        const copied = await copy(source.textContent);
        said.textContent = copied ? place.dataset.copied : place.dataset.copyRefused;
    });
    place.append(button, " ", said);
}

async function copy(text) {
    try {
        // Only pages by HTTPS and of this machine have it.
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
