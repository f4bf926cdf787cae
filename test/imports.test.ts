import { readdir, readFile, readlink } from 'node:fs/promises';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';
import test from 'ava';

// The architecture of the program: imports go only to the right, and each kind of access has one
// place.
//
// deploy → api → workflows ⇢ activities → db      test → anything
//
// Activities may also import the types of the messages that cross Temporal, only from
// workflows/messages.ts. Types have no cost at run time, and messages should be declared only once.
//
// Customers run the clients in their own programs. Files that the clients share with the service
// belong to the service. The clients' folders link to them, and the build copies them into the packages.

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDERS = ['deploy', 'api', 'workflows', 'activities', 'db', 'test'];

/** The files of workflows/ for the programs that start workflows and send them messages. */
const MESSAGES = ['workflows/messages.ts', 'workflows/starts.ts'];
const CLIENTS = 'api/clients/';
/** The files that the clients share with the service. */
const SHARED = [
  'api/files/',
  'db/accounts/prices.json',
  'db/providers/npi.ts',
  'db/requests/pacing.json',
  'deploy/printable.ts',
];

/**
 * The imports that modules of a folder may have besides their own folder: at run time, and only as
 * types.
 */
const MAY_IMPORT: Readonly<
  Record<
    string,
    { readonly values: readonly string[]; readonly types: readonly string[] }
  >
> = {
  deploy: { values: ['api', ...MESSAGES, 'activities', 'db'], types: [] },
  api: { values: [...MESSAGES, 'db'], types: [] },
  workflows: { values: [], types: ['activities', 'db'] },
  activities: { values: ['db'], types: ['workflows/messages.ts'] },
  db: { values: [], types: [] },
};
/** Workflow code runs in a sandbox, where only Temporal's own packages are deterministic. */
const WORKFLOW_PACKAGES = ['@temporalio/workflow', '@temporalio/common'];

interface Import {
  readonly from: string;
  readonly target: string;
  readonly typeOnly: boolean;
}

interface Source {
  readonly file: string;
  readonly text: string;
}

async function sources(): Promise<Source[]> {
  const files = await Promise.all(
    FOLDERS.map(async (folder) => {
      const entries = await readdir(join(ROOT, folder), {
        recursive: true,
        withFileTypes: true,
      });
      return entries.filter(
        (entry) =>
          entry.isFile() &&
          /\.m?[jt]s$/.test(entry.name) &&
          !entry.parentPath.includes('node_modules'),
      );
    }),
  );
  return await Promise.all(
    files.flat().map(async ({ parentPath, name }) => {
      const path = join(parentPath, name);
      return {
        file: relative(ROOT, path).replaceAll('\\', '/'),
        text: await readFile(path, 'utf8'),
      };
    }),
  );
}

/** Returns static, dynamic and re-exporting imports. Relative ones become paths from the root. */
function importsOf({ file, text }: Source): Import[] {
  const found = text.matchAll(
    /^(?:import|export)\s+(?<type>type\s)?(?<names>[\w\s{},*$]*?)\s*from\s*['"](?<from>[^'"]+)['"]|^import\s*['"](?<bare>[^'"]+)['"]|\bimport\(\s*['"](?<dynamic>[^'"]+)['"]/gm,
  );
  return [...found].map(({ groups = {} }) => {
    const { type, names = '' } = groups;
    const target = groups.from ?? groups.bare ?? groups.dynamic ?? '';
    const named =
      names
        .trim()
        .match(/^\{([^}]*)\}$/)?.[1]
        ?.split(',')
        .filter((name) => name.trim() !== '') ?? [];
    const onlyTypes =
      named.length > 0 && named.every((name) => name.trim().startsWith('type '));
    return {
      from: file,
      target: target.startsWith('.')
        ? join(dirname(file), target).replaceAll('\\', '/')
        : target,
      typeOnly: type !== undefined || onlyTypes,
    };
  });
}

/** Returns the imports that break the direction. */
function wrongWays(all: readonly Source[]): string[] {
  const wrong = all.flatMap(importsOf).filter(({ from, target, typeOnly }) => {
    const folder = from.split('/')[0] ?? '';
    const rules = MAY_IMPORT[folder];
    if (!rules || !FOLDERS.includes(target.split('/')[0] ?? '')) return false;
    const allowed = [folder, ...rules.values, ...(typeOnly ? rules.types : [])];
    return !allowed.some((path) => target === path || target.startsWith(`${path}/`));
  });
  return wrong.map(
    ({ from, target, typeOnly }) => `${from} → ${target}${typeOnly ? ' (type)' : ''}`,
  );
}

function filesWith(all: readonly Source[], pattern: RegExp): string[] {
  return all.filter(({ text }) => pattern.test(text)).map(({ file }) => file);
}

const outside =
  (...places: readonly string[]) =>
  (file: string) =>
    !places.some((place) => file.startsWith(place));

test('a folder imports only the folders on its right', async (t) => {
  const all = await sources();
  t.true(all.flatMap(importsOf).length > 300);
  t.deepEqual(wrongWays(all), []);
});

test('the import rule recognizes every kind of import', (t) => {
  const text = [
    "import { a } from '../api/a.ts';",
    "import type { B } from '../deploy/b.ts';",
    "import '../deploy/c.ts';",
    "export { d } from '../workflows/d.ts';",
    "const e = await import('../activities/e.ts');",
    "import {\n  type F,\n  f,\n} from '../workflows/messages.ts';",
    "import { sql } from 'drizzle-orm';",
    "import { own } from './own.ts';",
  ].join('\n');
  t.deepEqual(wrongWays([{ file: 'db/x.ts', text }]), [
    'db/x.ts → api/a.ts',
    'db/x.ts → deploy/b.ts (type)',
    'db/x.ts → deploy/c.ts',
    'db/x.ts → workflows/d.ts',
    'db/x.ts → activities/e.ts',
    'db/x.ts → workflows/messages.ts',
  ]);
  const shared = "import { requestSettled } from '../workflows/messages.ts';";
  t.deepEqual(wrongWays([{ file: 'activities/x.ts', text: shared }]).length, 1);
  t.deepEqual(
    wrongWays([{ file: 'activities/x.ts', text: shared.replace('{', 'type {') }]),
    [],
  );
});

/** Returns the import cycles. An import of a type counts like any other. */
function cycles(all: readonly Source[]): string[] {
  const targets = new Map(
    all.map((source) => [source.file, importsOf(source).map(({ target }) => target)]),
  );
  const done = new Set<string>();
  const found: string[] = [];
  const visit = (file: string, way: readonly string[]) => {
    if (way.includes(file))
      found.push([...way.slice(way.indexOf(file)), file].join(' → '));
    if (way.includes(file) || done.has(file)) return;
    for (const target of targets.get(file) ?? []) visit(target, [...way, file]);
    done.add(file);
  };
  for (const file of targets.keys()) visit(file, []);
  return found;
}

test('no file imports itself through other files, not even for a type', async (t) => {
  t.deepEqual(cycles(await sources()), []);
  const texts = {
    'db/a.ts': "import { b } from './b.ts';",
    'db/b.ts': "import { c } from './c.ts';\nimport { d } from './d.ts';",
    'db/c.ts': "import type { B } from './b.ts';",
    'db/d.ts': '',
  };
  const made = Object.entries(texts).map(([file, text]) => ({ file, text }));
  t.deepEqual(cycles(made), ['db/b.ts → db/c.ts → db/b.ts']);
});

test('workflows import only Temporal and their own files at run time', async (t) => {
  const imports = (await sources())
    .filter(({ file }) => file.startsWith('workflows/'))
    .flatMap(importsOf);
  const foreign = imports.filter(
    ({ target, typeOnly }) =>
      !typeOnly &&
      !target.startsWith('workflows/') &&
      !WORKFLOW_PACKAGES.includes(target),
  );
  t.deepEqual(foreign, []);
});

/** Returns the imports across the border of a folder of the project, in both directions. */
function across(all: readonly Source[], folder: string): string[] {
  const isInside = (path: string) => path.startsWith(folder);
  const isOurs = (path: string) => FOLDERS.includes(path.split('/')[0] ?? '');
  return all
    .flatMap(importsOf)
    .filter(({ target }) => isOurs(target))
    .filter(({ from, target }) => isInside(from) !== isInside(target))
    .map(({ from, target }) => `${from} → ${target}`);
}

test('the clients import nothing from the service, and only their tests import them', async (t) => {
  const all = await sources();
  t.true(all.some(({ file }) => file === `${CLIENTS}typescript/index.ts`));
  const isTest = (line: string) => /^test\/(?:system\/)?api\/clients\//.test(line);
  t.deepEqual(
    across(all, CLIENTS).filter((line) => !isTest(line)),
    [],
  );
  const texts = {
    [`${CLIENTS}typescript/a.ts`]: "import { b } from '../../../db/b.ts';",
    'api/c.ts': "import type { D } from './clients/typescript/d.ts';",
    'test/api/clients/e.test.ts': "import { f } from '../../../db/f.ts';",
  };
  const made = Object.entries(texts).map(([file, text]) => ({ file, text }));
  t.deepEqual(across(made, CLIENTS), [
    'api/clients/typescript/a.ts → db/b.ts',
    'api/c.ts → api/clients/typescript/d.ts',
  ]);
});

test('the clients link only to the files that they share, which import only each other', async (t) => {
  const entries = await readdir(join(ROOT, 'api'), {
    recursive: true,
    withFileTypes: true,
  });
  const links = entries.filter((entry) => entry.isSymbolicLink());
  const targets = await Promise.all(
    links.map(async ({ parentPath, name }) => {
      const target = await readlink(join(parentPath, name));
      return relative(ROOT, join(parentPath, target)).replaceAll('\\', '/');
    }),
  );
  t.true(targets.length > 10);
  t.deepEqual(targets.filter(outside(...SHARED)), []);
  const shared = (await sources()).filter(({ file }) => targets.includes(file));
  const imports = shared.flatMap(importsOf).map(({ target }) => target);
  t.deepEqual(
    imports
      .filter((target) => /\//.test(target))
      .filter(outside('api/files/', 'csv-parse/', 'node:')),
    [],
  );
});

test('only the local stack and tests import deploy/local/', async (t) => {
  const imports = across(await sources(), 'deploy/local/');
  t.true(imports.length > 0);
  const inward = imports.filter((line) => line.includes('→ deploy/local/'));
  t.deepEqual(inward.filter(outside('test/')), []);
});

/** Returns each file that a file imports, also through others, with the file that imports it. */
function reachable(all: readonly Source[], start: string): Map<string, string> {
  const byFile = new Map(all.map((source) => [source.file, source]));
  const found = new Map<string, string>();
  const visit = (file: string) => {
    const source = byFile.get(file);
    if (source === undefined) return;
    for (const { target } of importsOf(source)) {
      if (found.has(target)) continue;
      found.set(target, file);
      visit(target);
    }
  };
  visit(start);
  return found;
}

test('the worker takes nothing from api/', async (t) => {
  const found = reachable(await sources(), 'deploy/worker.ts');
  t.true(found.size > 100);
  const lines = [...found].map(([target, from]) => `${target} ← ${from}`);
  t.deepEqual(
    lines.filter((line) => line.startsWith('api/')),
    [],
  );
});

// The client runs on machines of customers, without our configuration. It also looks for their proxy.
test('only deploy/config/config.ts and the client read the environment', async (t) => {
  const readers = filesWith(
    await sources(),
    /\bprocess\s*\.\s*env\b|\bprocess\s*\[|from '(?:node:)?process'|\{[^}]*\benv\b[^}]*\}\s*=\s*process\b/,
  );
  t.deepEqual(readers.filter(outside('test/')).sort(), [
    'api/clients/typescript/arguments.ts',
    'api/clients/typescript/http.ts',
    'deploy/config/config.ts',
  ]);
});

test('SQL is written only in db/', async (t) => {
  const all = await sources();
  const drivers = filesWith(all, /from '(?:drizzle-orm|postgres)(?:\/[^']*)?'/).filter(
    outside('test/', 'db/'),
  );
  const statements = filesWith(
    all,
    /['"`\s](?:select\s[\w\s.,*()]+\sfrom|insert\s+into|delete\s+from|update\s+\w+\s+set|create\s+(?:table|database|role))\s/i,
  );
  t.deepEqual(drivers, []);
  t.deepEqual(statements.filter(outside('test/', 'db/')), []);
});
