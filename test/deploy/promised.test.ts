import { readFile } from 'node:fs/promises';
import test from 'ava';
import METRICS from '../../db/operations/metrics.json' with { type: 'json' };
import manifest from '../../package.json' with { type: 'json' };
import { operatorOn } from '../support/operator.ts';
import PROMISED from './promised.json' with { type: 'json' };

// Tests that a release keeps the names on which operators rely, as CHANGELOG.md promises.
// promised.json has the names of the newest release.

const ROOT = new URL('../../', import.meta.url);
const read = (file: string) => readFile(new URL(file, ROOT), 'utf8');
/** `--help` needs no database. */
const { listCommands } = operatorOn('postgres://u:p@127.0.0.1:1/x');

/** The arguments, options, or labels of each name. */
type Parts = Readonly<Record<string, readonly string[]>>;

async function listSettings(): Promise<string[]> {
  const example = await read('deploy/env.example');
  return [...example.matchAll(/^([A-Z_]+)=/gm)].map(([, name = '']) => name);
}

/** Lists the metrics with their labels. */
function listMetrics(): Parts {
  const { counted, timed, stats } = METRICS;
  return Object.fromEntries([
    ...Object.entries(counted).map(([name, { labels }]) => [`counter ${name}`, labels]),
    ...Object.entries(timed).map(([name, { labels }]) => [`histogram ${name}`, labels]),
    ...Object.keys(stats).map((name) => [`gauge ${name}`, []]),
  ]);
}

/** Lists the operator commands and their arguments with their options. */
async function listOperatorCommands(): Promise<Parts> {
  const all = [...(await listCommands()).values()].map((help) => {
    const [, usage = ''] = /^Usage: npm run operator -- (.*)/.exec(help) ?? [];
    const [, options = ''] = /\nOptions:\n(.*?)\n\n/s.exec(help) ?? [];
    const flags = [...options.matchAll(/^ {2}(--.*?)(?: {2}|$)/gm)];
    return [usage.replace(' [options]', ''), flags.map(([, flag = '']) => flag)];
  });
  return Object.fromEntries(all);
}

function flat(parts: Parts): string[] {
  return Object.entries(parts).flatMap(([name, its]) => [
    name,
    ...its.map((part) => `${name}: ${part}`),
  ]);
}

test('the settings, metrics, and operator commands of the newest release still exist', async (t) => {
  const now = {
    settings: await listSettings(),
    metrics: listMetrics(),
    commands: await listOperatorCommands(),
  };
  const [, newest] = /^## \[(.+?)\]/m.exec(await read('CHANGELOG.md')) ?? [];
  if (newest === manifest.version) t.deepEqual<object, object>(PROMISED, now);
  const namesOf = ({ settings, metrics, commands }: typeof now) => [
    ...settings,
    ...flat(metrics),
    ...flat(commands),
  ];
  const known = new Set(namesOf(now));
  const gone = namesOf(PROMISED).filter((name) => !known.has(name));
  t.deepEqual(gone, [], 'only a new major version drops these');
});
