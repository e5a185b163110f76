// Submits the form of a confirmation page only once on a double click: a second submission would conflict with the changes of the
// first, and report an error for an action that was done.

const AGAIN_MILLISECONDS = 1000;

let submitted = -Infinity;
document.querySelector(".sq-form")?.addEventListener("submit", (event) => {
    if (event.timeStamp - submitted < AGAIN_MILLISECONDS) {
        event.preventDefault();
    } else {
        submitted = event.timeStamp;
    }
});
