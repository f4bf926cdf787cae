import { cp, mkdir, readFile } from 'node:fs/promises';
import { basename, delimiter, dirname, join, relative } from 'node:path';
import { run } from '../../deploy/local/processes.ts';

// Builds our Dockerfile into folders, so that the images can run without a container engine.

/** The settings that an image starts with. `folder` is its /app. */
export interface Image {
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
  readonly user: { readonly uid: number; readonly gid: number };
  readonly entrypoint: readonly string[];
  readonly healthcheck: readonly string[];
}

const WORKDIR = '/app';
/** The commit for which the images are built. */
export const COMMIT = '73b311b';
/** Instructions that change nothing here. */
const PLAIN = [`WORKDIR ${WORKDIR}`, 'ARG GIT_COMMIT=""'];

/**
 * Builds every stage of a Dockerfile. It supports only the instructions that ours uses, and throws
 * for others.
 * @param context the build context
 * @param into an empty folder
 * @returns the stages by name
 */
export async function buildImages(
  dockerfile: string,
  context: string,
  into: string,
): Promise<ReadonlyMap<string, Image>> {
  const isShipped = await shippedFrom(context);
  const images = new Map<string, Image>();
  let image: Image = EMPTY;
  let name = '';
  for (const [instruction, rest] of instructionsOf(await readFile(dockerfile, 'utf8'))) {
    if (instruction === 'FROM') {
      const [from = '', , as = ''] = rest.split(' ');
      name = as;
      image = images.get(from) ?? EMPTY;
    } else if (instruction === 'COPY' || instruction === 'RUN') {
      const folder = join(into, name);
      // Stages that only change settings share a folder.
      if (image.folder === '') await mkdir(folder, { recursive: true });
      else if (image.folder !== folder)
        await cp(image.folder, folder, { recursive: true, verbatimSymlinks: true });
      image = { ...image, folder };
      await (instruction === 'COPY'
        ? copy(rest.split(' '), folder, { context, images, isShipped })
        : runShell(rest, image));
    } else {
      const given = rest.replace('$GIT_COMMIT', COMMIT);
      image = { ...image, ...settingOf(instruction, given) };
    }
    images.set(name, image);
  }
  return images;
}

const EMPTY = {
  folder: '',
  env: {},
  user: { uid: 0, gid: 0 },
  entrypoint: [],
  healthcheck: [],
};

async function runShell(line: string, { folder, env }: Image): Promise<void> {
  // The Node.js of this process stands for that of the image.
  const PATH = [dirname(process.execPath), process.env.PATH].join(delimiter);
  const shell = ['-c', `cd "$1" && ${line}`, 'sh', folder];
  const { code, output } = await run('sh', shell, {
    env: { ...process.env, ...env, PATH },
  });
  if (code !== 0) throw new Error(`RUN ${line} failed: ${output}`);
}

/** Splits a Dockerfile into instructions, without comments and with continued lines joined. */
function instructionsOf(text: string): (readonly [instruction: string, rest: string])[] {
  return text
    .replace(/^#.*\n/gm, '')
    .replace(/\\\n\s*/g, '')
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => [line.split(' ', 1)[0] ?? '', line.slice(line.indexOf(' ') + 1)]);
}

function settingOf(instruction: string, rest: string): Partial<Image> {
  if (instruction === 'ENTRYPOINT') return { entrypoint: JSON.parse(rest) };
  if (instruction === 'HEALTHCHECK')
    return { healthcheck: JSON.parse(rest.slice(rest.indexOf('['))) };
  if (instruction === 'ENV')
    return { env: Object.fromEntries(rest.split(' ').map((one) => one.split('='))) };
  if (instruction === 'USER') {
    const [uid, gid] = rest.split(':').map(Number);
    return { user: { uid: uid ?? Number.NaN, gid: gid ?? Number.NaN } };
  }
  const line = `${instruction} ${rest}`;
  if (instruction === 'EXPOSE' || PLAIN.includes(line)) return {};
  throw new Error(`${instruction} is not known here`);
}

async function copy(
  args: readonly string[],
  folder: string,
  {
    context,
    images,
    isShipped,
  }: {
    readonly context: string;
    readonly images: ReadonlyMap<string, Image>;
    readonly isShipped: (path: string) => boolean;
  },
): Promise<void> {
  const from = /^--from=(.*)$/.exec(args[0] ?? '')?.[1];
  const [target = '', ...sources] = args.slice(from ? 1 : 0).reverse();
  const root = from ? (images.get(from)?.folder ?? '') : context;
  const filter = (file: string) =>
    from !== undefined || isShipped(relative(context, file));
  for (const source of sources) {
    const path = source.replace(`${WORKDIR}/`, '');
    const place = join(folder, target, target.endsWith('/') ? basename(path) : '');
    await cp(join(root, path), place, {
      recursive: true,
      verbatimSymlinks: true,
      filter,
    });
  }
}

/**
 * Reads the .dockerignore of a folder. The last pattern that matches a path, or a folder above it,
 * decides.
 * @returns a function that returns true for paths that are sent to the engine
 */
export async function shippedFrom(context: string): Promise<(path: string) => boolean> {
  const lines = (await readFile(join(context, '.dockerignore'), 'utf8')).split('\n');
  const patterns = lines.filter((line) => line !== '' && !line.startsWith('#'));
  const above = (path: string): string[] =>
    path === '.' ? [] : [path, ...above(dirname(path))];
  return (path) => {
    const paths = above(path || '.');
    const last = patterns.findLast((pattern) =>
      paths.some((one) => regexOf(pattern).test(one)),
    );
    return last === undefined || last.startsWith('!');
  };
}

/**
 * Converts a pattern of .dockerignore. `*` matches any text within a name, including a leading dot.
 */
function regexOf(pattern: string): RegExp {
  const parts = pattern.replace('!', '').split('**/');
  const regex = parts.map((part) =>
    part.replace(/[.+^${}()|[\]\\]/g, '\\$&').replaceAll('*', '[^/]*'),
  );
  return new RegExp(`^${regex.join('(.+/)?')}$`);
}
