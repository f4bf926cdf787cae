import { execFileSync } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { basename, dirname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';
import { VENDOR_IDS } from '../activities/vendors/catalogue.ts';
import { VERIFIER_IDS } from '../activities/verification/verifiers/catalogue.ts';
import { withParts } from '../api/docs/tables.ts';
import { REASONS } from '../db/words.ts';
import { loadConfig } from '../deploy/config/config.ts';
import { fileIn } from './support/adapters.ts';

// Pages and comments name files, sections, scripts and settings. These tests look up each name, so
// that moved files and changed headings cannot leave dead references.

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDERS = 'activities|api|db|deploy|patches|test|workflows';
const ROOTED = new RegExp(`^(?:${FOLDERS}|\\.ci)/`);
/** Files outside the repository: of other programs, or made by running something. */
const ELSEWHERE = new Set([
  ...['stack.json', 'sources.json', 'person.json', 'headers.txt', 'body.json'],
  // Files in the pages for API users: served ones, and those that readers write.
  ...['openapi.json', 'llms.txt', 'quick-start.ts', 'enrich.state.json'],
]);

/** A text in which names are looked up, with its place. */
interface Passage {
  readonly file: string;
  readonly line: number;
  readonly text: string;
}

let files: ReadonlySet<string>;
let folders: ReadonlySet<string>;
let pages: readonly Passage[];
let comments: readonly Passage[];
/** Every line of the code. */
let lines: readonly Passage[];
/** Every word of the code. */
let words: ReadonlySet<string>;
/** The headings of each page. */
let headings: ReadonlyMap<string, readonly string[]>;

test.before(async () => {
  // Includes new uncommitted files, and excludes deleted ones.
  const listed = execFileSync(
    'git',
    ['ls-files', '--cached', '--others', '--exclude-standard', '--deduplicate'],
    {
      cwd: ROOT,
      encoding: 'utf8',
    },
  );
  const gone = execFileSync('git', ['ls-files', '--deleted'], {
    cwd: ROOT,
    encoding: 'utf8',
  }).split('\n');
  files = new Set(
    listed.split('\n').filter((file) => file !== '' && !gone.includes(file)),
  );
  folders = new Set([...files].flatMap(parentsOf));
  const texts = await Promise.all(
    [...files]
      .filter(
        (file) =>
          /\.(?:ts|mjs|sql|sh|py|md|patch|yaml)$|\/Dockerfile$/.test(file) ||
          file.startsWith('.ci/'),
      )
      .map(async (file) => ({ file, text: await readFile(join(ROOT, file), 'utf8') })),
  );
  const isPage = ({ file }: { file: string }) => file.endsWith('.md');
  pages = texts.filter(isPage).map(({ file, text }) => ({ file, line: 1, text }));
  comments = texts
    .filter((one) => !isPage(one))
    .flatMap(({ file, text }) => commentsOf(file, text));
  const code = texts.filter(
    (one) => !isPage(one) && one.file !== 'test/documents.test.ts',
  );
  lines = code.flatMap(({ file, text }) =>
    text.split('\n').map((line, index) => ({ file, line: index + 1, text: line })),
  );
  words = new Set(code.flatMap(({ text }) => text.match(/\w+/g) ?? []));
  headings = new Map(pages.map(({ file, text }) => [file, headingsOf(withParts(text))]));
});

/** Returns the comments of a file, each as one text without its marks. */
function commentsOf(file: string, text: string): Passage[] {
  let marks = /^\s*#(?!!)/;
  if (/\.(?:ts|mjs)$/.test(file)) marks = TS_COMMENT;
  else if (file.endsWith('.sql')) marks = /^\s*--(?!>)/;
  const found: { line: number; lines: string[] }[] = [];
  let inside = false;
  for (const [index, line] of text.split('\n').entries()) {
    const mark = marks.exec(line);
    const trailing = mark === null ? /\s\/\/ (.*)$/.exec(line)?.[1] : undefined;
    const words = mark === null ? trailing : line.slice(mark[0].length).trim();
    if (words !== undefined) {
      if (inside && mark !== null) found.at(-1)?.lines.push(words);
      else found.push({ line: index + 1, lines: [words] });
    }
    inside = mark !== null;
  }
  return found.map(({ line, lines }) => ({ file, line, text: lines.join(' ') }));
}

const TS_COMMENT = /^\s*(?:\/\/|\/\*\*?|\*\/?)/;

function headingsOf(text: string): string[] {
  return [...withoutCode(text).matchAll(/^#{1,6} +(.+?) *$/gm)].map(
    ([, heading = '']) => heading,
  );
}

/** Removes code blocks, which contain no headings and links. */
function withoutCode(text: string): string {
  return text.replace(/^```[\s\S]*?^```$/gm, '');
}

function parentsOf(file: string): string[] {
  const parent = dirname(file);
  return parent === '.' ? [] : [parent, ...parentsOf(parent)];
}

/** Returns true if a path from the root exists. `*` matches any text within a name. */
function exists(path: string): boolean {
  const clean = path.replace(/\/$/, '');
  if (!clean.includes('*')) return files.has(clean) || folders.has(clean);
  const pattern = new RegExp(
    `^${clean.replace(/[.+]/g, '\\$&').replaceAll('*', '[^/]*')}$`,
  );
  return [...files, ...folders].some((one) => pattern.test(one));
}

/** Returns GitHub's anchor for a heading. */
function anchorOf(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\s_-]/gu, '')
    .replaceAll(' ', '-');
}

function place({ file, line }: Passage): string {
  return file.endsWith('.md') ? file : `${file}:${line}`;
}

/** Returns one line for each name in these passages for which `isMissing` is true. */
function missing(
  passages: readonly Passage[],
  pattern: RegExp,
  isMissing: (match: RegExpMatchArray, passage: Passage) => boolean,
): string[] {
  return passages.flatMap((passage) =>
    [...passage.text.matchAll(pattern)]
      .filter((match) => isMissing(match, passage))
      .map((match) => `${place(passage)}: ${match[0]}`),
  );
}

test('every file and folder named in a comment or a page exists', (t) => {
  // A path from the root, from the file that names it, or the end of an existing path: `batch.ts`,
  // `sim/magic.ts`.
  const paths = new RegExp(
    `(?<![\\w./:@*<>-])(?:${FOLDERS}|\\.ci)/[\\w.*/-]*[\\w*]/?`,
    'g',
  );
  const names =
    /(?<![\w/.*<>-])(?:[\w.-]+\/)*[\w-]+(?:\.[\w-]+)*\.(?:ts|mjs|md|sql|py|txt|json)\b(?!\()/g;
  const isNowhere = ([path]: RegExpMatchArray, { file }: Passage) =>
    !ELSEWHERE.has(basename(path)) &&
    !exists(path) &&
    !exists(normalize(join(dirname(file), path))) &&
    (ROOTED.test(path) || ![...files].some((one) => one.endsWith(`/${path}`)));
  const everything = [...pages, ...comments];
  const prose = [
    ...pages.map((page) => ({ ...page, text: withoutCode(page.text) })),
    ...comments,
  ];
  t.true(missing(everything, paths, () => true).length > 200);
  t.true(missing(prose, names, () => true).length > 100);
  const nowhere = [
    ...missing(everything, paths, isNowhere),
    ...missing(prose, names, isNowhere),
  ];
  t.deepEqual([...new Set(nowhere)], []);
});

test('every page named in a message of the code exists', (t) => {
  const paths = new RegExp(`(?<![\\w/.-])(?:${FOLDERS})/[\\w/-]+\\.md\\b`, 'g');
  t.true(missing(lines, paths, () => true).length > 20);
  t.deepEqual(
    missing(lines, paths, ([path]) => !exists(path)),
    [],
  );
});

test('every link of a page leads to an existing file and heading', (t) => {
  const prose = pages.map((page) => ({ ...page, text: withoutCode(page.text) }));
  // Links with a leading slash go to served pages. test/system/api/docs/pages.test.ts checks them.
  const links = /\]\((?![a-z]+:|\/)([^)#\s]*)(?:#([^)\s]+))?\)/g;
  t.true(missing(prose, links, () => true).length > 30);
  const broken = missing(prose, links, ([, path = '', anchor], { file }) => {
    const target = path === '' ? file : normalize(join(dirname(file), path));
    if (!exists(target)) return true;
    return (
      anchor !== undefined &&
      !(headings.get(target) ?? []).some((one) => anchorOf(one) === anchor)
    );
  });
  t.deepEqual(broken, []);
});

test('every cited section is a heading of its page', (t) => {
  // `DECISIONS.md, Webhooks, schedule` cites the section Webhooks. Any text may follow a heading.
  const citations =
    /(?<![\w/.-])((?:[\w-]+\/)*(?:[A-Z][\w-]*|(?<=\bdocs\/)[\w-]+)\.md)`?, (?=["A-Z])"?([^|\n]*)/g;
  const isCitation = (rest: string) => !/^[\w./-]+\.md/.test(rest);
  const isMissing = ([, path = '', rest = '']: RegExpMatchArray, { file }: Passage) => {
    const target = files.has(path) ? path : normalize(join(dirname(file), path));
    const isKnown = (headings.get(target) ?? []).some(
      (one) => rest.startsWith(one) && !/^\w/.test(rest.slice(one.length)),
    );
    return isCitation(rest) && !isKnown;
  };
  const prose = pages.map(({ text, ...page }) => ({
    ...page,
    text: text.replace(/\n(?! *[-#|])/g, ' '),
  }));
  const passages = [...prose, ...comments];
  t.true(missing(passages, citations, ([, , rest = '']) => isCitation(rest)).length > 40);
  t.deepEqual(missing(passages, citations, isMissing), []);
});

test('every name that a page quotes from the code is in the code', (t) => {
  const names = /`([a-z]+(?:[A-Z]\w*|(?:_[a-z0-9]+)+))`/g;
  const prose = pages.map((page) => ({ ...page, text: withoutCode(page.text) }));
  t.true(missing(prose, names, () => true).length > 200);
  t.deepEqual(
    missing(prose, names, ([, name = '']) => !words.has(name)),
    [],
  );
});

test('every named npm script is in package.json', async (t) => {
  const { scripts } = JSON.parse(await readFile(join(ROOT, 'package.json'), 'utf8')) as {
    scripts: Record<string, string>;
  };
  const calls = /\bnpm (?:run (?:--silent )?([a-z][\w:-]*)|(start|test)\b)/g;
  const isMissing = ([, run, short]: RegExpMatchArray) =>
    scripts[run ?? short ?? ''] === undefined;
  t.true(missing(pages, calls, () => true).length > 30);
  const started = Object.entries(scripts).flatMap(([name, command]) =>
    [...command.matchAll(/\bnode (?:--\S+ )*(\S+\.m?[jt]s)/g)].map(([, file = '']) => ({
      name,
      file,
    })),
  );
  const broken = started
    .filter(({ file }) => !files.has(file))
    .map(({ name, file }) => `${name}: ${file}`);
  t.deepEqual([...missing([...pages, ...comments], calls, isMissing), ...broken], []);
});

const IDS: readonly string[] = [...VENDOR_IDS, ...VERIFIER_IDS];

test('env.example lists every setting of the configuration with its default', async (t) => {
  const example = await readFile(join(ROOT, 'deploy/env.example'), 'utf8');
  const given = Object.fromEntries(
    [...example.matchAll(/^([A-Z_]+)=(.*)$/gm)].map(([, name = '', value = '']) => [
      name,
      value,
    ]),
  );
  // Temporal's library reads its own settings, and the base URLs of most sources are mentioned
  // together.
  const isMentioned = (name: string) =>
    /^(?:TEMPORAL_|(?!REACHER|REGISTRY|DATABASE|PUBLIC)\w+_URL$)/.test(name);
  const code = await readFile(join(ROOT, 'deploy/config/config.ts'), 'utf8');
  const settings = [...code.matchAll(/: \[\s*'([A-Z][A-Z0-9_]+)',\s/g)].map(
    ([, name = '']) => name,
  );
  const keys = IDS.map((id) => `${id.replace(/-.*/, '').toUpperCase()}_API_KEY`);
  const expected = new Set([...settings, ...keys, 'REACHER_URL']);
  const namesOf = (names: Iterable<string>) =>
    [...names].filter((name) => !isMentioned(name)).sort();
  t.deepEqual(namesOf(Object.keys(given)), namesOf(expected));
  const database = { DATABASE_URL: 'postgres://somebody@localhost/x' };
  const { temporalEnvironment: _, secretOf: __, ...defaults } = loadConfig(database);
  t.like(loadConfig({ ...given, ...database }), defaults);
});

test('the pages list exactly the members of the sources file', (t) => {
  // The error for an unknown member lists the known ones of its object.
  const each = (ids: readonly string[]) =>
    Object.fromEntries(ids.map((id) => [id, { '?': 0 }]));
  const part = { pointer: '', '?': 0 };
  const file = {
    ...{
      '?': 0,
      vendors: each(VENDOR_IDS),
      verifiers: { '?': 0, ...each(VERIFIER_IDS) },
    },
    http: [
      {
        '?': 0,
        miss: { '?': 0, when: [part] },
        candidates: { '?': 0, type: part },
        identity: part,
      },
    ],
  };
  const { message = '' } = t.throws(() => fileIn(JSON.stringify(file))) ?? {};
  const known = [...message.matchAll(/known here: (.*)/g)].flatMap(([, names = '']) =>
    names.split(', '),
  );
  const has = new Set(known.filter((name) => !IDS.includes(name)));
  t.true(has.size > 30);
  const rows = pages
    .flatMap(({ text }) => [...text.matchAll(/^\| member \|.*\n((?:\|.*\n)+)/gm)])
    .flatMap(([, table = '']) => table.split('\n'));
  const quoted = (text: string) =>
    [...text.matchAll(/`([^`]+)`/g)].flatMap(
      ([, code = '']) => code.match(/\b[a-z_]+\b/g) ?? [],
    );
  const told = rows
    .flatMap((row) => quoted(row.split(' | ')[0] ?? ''))
    .filter((name) => !IDS.includes(name));
  const anywhere = new Set(rows.flatMap(quoted));
  t.deepEqual(
    {
      toldButNotKnown: told.filter((name) => !has.has(name)),
      knownButNotTold: [...has].filter((name) => !anywhere.has(name)),
    },
    { toldButNotKnown: [], knownButNotTold: [] },
  );
});

test('the runbook about failed requests names only known reasons', async (t) => {
  const page = await readFile(join(ROOT, 'deploy/runbooks/requests-failing.md'), 'utf8');
  const [, list = ''] =
    /^These are all reasons\..*\n\n((?:[- ] .*\n)+)/m.exec(page) ?? [];
  const quoted = [...list.matchAll(/`(?:deadline \()?(\w+)\)?`/g)].map(
    ([, name = '']) => name,
  );
  t.true(quoted.length > 20);
  t.deepEqual(
    quoted.filter((name) => name !== 'verifier_' && !Object.hasOwn(REASONS, name)),
    [],
  );
});

test('no example sends webhooks to a host that may exist', async (t) => {
  const texts = await Promise.all(
    [...files]
      .filter((file) => /^(?:README|api\/|deploy\/).*\.(?:md|json)$/.test(file))
      .map((file) => readFile(join(ROOT, file), 'utf8')),
  );
  const urls = texts.flatMap((text) => [
    ...text.matchAll(/"webhook": ?\{\s*"url": ?"https:\/\/(?<host>[^"/:]+)/g),
  ]);
  const hosts = new Set(urls.map(({ groups = {} }) => groups.host ?? ''));
  t.true(urls.length > 5);
  t.deepEqual(
    [...hosts].filter((host) => host !== '127.0.0.1' && !host.endsWith('.example')),
    [],
  );
});
