// Shows times in the visitor's time zone, and in UTC on hover. Without this script, they are in UTC.

const LOCAL = new Intl.DateTimeFormat('en-US', {
  year: 'numeric',
  month: 'short',
  day: 'numeric',
  hour: 'numeric',
  minute: '2-digit',
  timeZoneName: 'short',
});

/** Changes the times in a part of a page. */
export function showLocalTimes(part) {
  for (const time of part.querySelectorAll('time')) {
    time.title = time.textContent;
    time.textContent = LOCAL.format(new Date(time.dateTime));
  }
}

showLocalTimes(document);
