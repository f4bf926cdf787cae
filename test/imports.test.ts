import { readdir, readFile } from 'node:fs/promises';
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

const ROOT = fileURLToPath(new URL('..', import.meta.url));
const FOLDERS = ['deploy', 'api', 'workflows', 'activities', 'db', 'test'];

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
  deploy: { values: ['api', 'workflows/messages.ts', 'activities', 'db'], types: [] },
  api: { values: ['workflows/messages.ts', 'db'], types: [] },
  workflows: { values: [], types: ['activities'] },
  activities: { values: ['db'], types: ['workflows/messages.ts'] },
  db: { values: [], types: [] },
};
/** The modules with which the client reads CSV files. The operator's commands use them too. */
const READERS = ['cell', 'csv', 'decode', 'usage-error'].map(
  (name) => `api/client/${name}.ts`,
);
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

// The demo acts as a customer. Escaping for a terminal and reading files is the same for customers and
// operators.
test('the client imports nothing from the service, which imports little of it', async (t) => {
  const imports = (await sources())
    .flatMap(importsOf)
    .filter(({ from }) => !from.startsWith('test/'));
  const isClient = (path: string) => path.startsWith('api/client/');
  const isOurs = (path: string) => FOLDERS.includes(path.split('/')[0] ?? '');
  t.true(imports.some(({ from, target }) => isClient(from) && isClient(target)));
  const isAllowed = ({ from, target }: (typeof imports)[number]) =>
    from === 'deploy/local/demo.ts' ||
    from.startsWith('api/console/') ||
    (from.startsWith('deploy/operator/') && READERS.includes(target)) ||
    target === 'api/client/printable.ts';
  t.deepEqual(
    imports.filter(
      (one) =>
        isOurs(one.target) &&
        isClient(one.from) !== isClient(one.target) &&
        !isAllowed(one),
    ),
    [],
  );
});

// The client's command is a separate program on machines of customers, without our configuration.
test('only deploy/config/config.ts and the client command read the environment', async (t) => {
  const readers = filesWith(
    await sources(),
    /\bprocess\s*\.\s*env\b|\bprocess\s*\[|from '(?:node:)?process'|\{[^}]*\benv\b[^}]*\}\s*=\s*process\b/,
  );
  t.deepEqual(readers.filter(outside('test/')).sort(), [
    'api/client/arguments.ts',
    'api/client/mcp.ts',
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
