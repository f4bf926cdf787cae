// What a page does in the browser: copy buttons, the mark of the section that is being read, and
// the search. Without this script, the page has none of them and still works.

for (const block of document.querySelectorAll('.code')) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'copy';
  button.textContent = 'Copy';
  button.addEventListener('click', async () => {
    await navigator.clipboard.writeText(block.querySelector('code').textContent);
    button.textContent = 'Copied';
    setTimeout(() => {
      button.textContent = 'Copy';
    }, 2000);
  });
  block.append(button);
}

const contents = [...document.querySelectorAll('aside.toc a')];
const headings = contents.map(({ hash }) => document.getElementById(hash.slice(1)));

/** Marks the last section that begins above the middle of the upper half of the window. */
function markSection() {
  const at = headings.findLastIndex(
    (heading) => heading.getBoundingClientRect().top < innerHeight / 4,
  );
  for (const [index, link] of contents.entries()) {
    if (index === at) link.setAttribute('aria-current', 'true');
    else link.removeAttribute('aria-current');
  }
}
addEventListener('scroll', markSection, { passive: true });
markSection();

const dialog = document.getElementById('search');
const input = dialog.querySelector('input');
const results = dialog.querySelector('ol');
const opener = document.querySelector('.search');
let index;

async function openSearch() {
  dialog.showModal();
  input.select();
  index ??= await (await fetch('/docs/search.json')).json();
  search();
}

/** Shows the ten best sections that contain all words. Words in titles count more. */
function search() {
  const words = input.value.toLowerCase().match(/\S+/g) ?? [];
  const scored = index.map((section) => ({ section, score: scoreOf(section, words) }));
  const found = scored.filter(({ score }) => score > 0);
  found.sort((one, other) => other.score - one.score);
  results.replaceChildren(
    ...found.slice(0, 10).map(({ section }) => entry(section, words)),
  );
  dialog.querySelector('p').hidden = words.length === 0 || found.length > 0;
}

function scoreOf({ title, page, text }, words) {
  const name = title.toLowerCase();
  const all = `${name} ${page} ${text}`.toLowerCase();
  if (!words.every((word) => all.includes(word))) return 0;
  const inTitle = words.filter((word) => name.includes(word)).length;
  return words.length + 4 * inTitle + (name === words.join(' ') ? 8 : 0);
}

function entry({ page, title, path, text }, words) {
  const item = document.createElement('li');
  const link = document.createElement('a');
  const where = document.createElement('small');
  where.textContent = title === page ? '' : ` · ${page}`;
  const excerpt = document.createElement('span');
  excerpt.textContent = excerptOf(text, words[0] ?? '');
  link.href = path;
  link.append(title, where, excerpt);
  item.append(link);
  return item;
}

/** Returns about a line of a text, from the word before the first match. */
function excerptOf(text, word) {
  const at = Math.max(0, text.toLowerCase().indexOf(word));
  const start = at < 40 ? 0 : text.indexOf(' ', at - 30) + 1;
  const part = text.slice(start, start + 110);
  return `${start > 0 ? '…' : ''}${part}${start + 110 < text.length ? '…' : ''}`;
}

opener.hidden = false;
opener.addEventListener('click', openSearch);
input.addEventListener('input', () => index && search());
dialog.addEventListener('click', ({ target }) => {
  // A click on the backdrop, or on a result, which may be on this page.
  if (target === dialog || target.closest('a')) dialog.close();
});
dialog.addEventListener('keydown', (event) => {
  const links = [...results.querySelectorAll('a')];
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === 'Enter' && event.target === input) links[0]?.click();
  if (step === undefined) return;
  event.preventDefault();
  const at = links.indexOf(document.activeElement) + step;
  (links[at] ?? input).focus();
});
addEventListener('keydown', async (event) => {
  const isTyping = event.target.closest('input, textarea, [contenteditable]');
  if (event.key !== '/' || isTyping || dialog.open) return;
  event.preventDefault();
  await openSearch();
});
