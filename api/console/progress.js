import { showLocalTimes } from './times.js';

// Updates the page of a running upload or batch. Without this script, the visitor reloads the page.

const MAX_SECONDS = 10;
let seconds = 3;
let progress = document.querySelector('#progress[data-running]');
while (progress) {
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  // Each look counts toward the rate limit of the key, as the submits do.
  // A new page would close an opened question.
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
