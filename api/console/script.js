// Additions to pages, which are complete without scripts.

const LOCAL = new Intl.DateTimeFormat('en-US', {
  year: 'numeric',
  month: 'short',
  day: 'numeric',
  hour: 'numeric',
  minute: '2-digit',
  timeZoneName: 'short',
});

/** Changes the times in a part of a page to the visitor's time zone, with UTC on hover. */
function showLocalTimes(part) {
  for (const time of part.querySelectorAll('time')) {
    time.title = time.textContent;
    time.textContent = LOCAL.format(new Date(time.dateTime));
  }
}

showLocalTimes(document);

// A copy button appears where the browser can copy.
for (const button of document.querySelectorAll('[data-copy]')) {
  button.hidden = !navigator.clipboard;
  button.addEventListener('click', async () => {
    const { textContent } = button.parentElement.querySelector('code');
    await navigator.clipboard.writeText(textContent);
    button.textContent = 'Copied';
  });
}

// Updates the page of a running upload or batch. Without it, the visitor reloads the page.

const MAX_SECONDS = 10;
let seconds = 3;
let progress = document.querySelector('#progress[data-running]');
while (progress) {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  // Each update counts toward the rate limit of the key, as the submits do.
  // A new page would close what the visitor has opened.
  if (document.hidden || progress.querySelector('[open]')) continue;
  seconds = Math.min(seconds * 1.2, MAX_SECONDS);
  const response = await fetch(location.href).catch(() => null);
  if (!response?.ok) continue;
  const page = new DOMParser().parseFromString(await response.text(), 'text/html');
  const next = page.querySelector('#progress');
  if (!next) {
    // The session has ended, so the visitor must sign in again.
    location.reload();
    break;
  }
  showLocalTimes(next);
  // Keeps the focus and the selection while nothing changes.
  if (progress.isEqualNode(next)) continue;
  progress.replaceWith(next);
  progress = next.matches('[data-running]') ? next : null;
}
