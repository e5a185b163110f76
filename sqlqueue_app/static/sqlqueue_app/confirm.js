// Submits the form of a confirmation page once per double click: the second submission would meet what the first one has changed,
// and report a conflict for an action that was done.

const AGAIN_MILLISECONDS = 1000;

let submitted = -Infinity;
document.querySelector(".sq-form")?.addEventListener("submit", (event) => {
    if (event.timeStamp - submitted < AGAIN_MILLISECONDS) {
        event.preventDefault();
    } else {
        submitted = event.timeStamp;
    }
});
