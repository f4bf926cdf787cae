import { readFile } from 'node:fs/promises';
import test from 'ava';
import {
  NPM_PACKAGE,
  PYTHON_PACKAGE,
  readPackages,
  readReleased,
} from '../../../api/docs/packages.ts';
import manifest from '../../../package.json' with { type: 'json' };
import { examples } from '../../support/documented/examples.ts';

// Tests that released versions of the clients never change and stay available.

const ROOT = new URL('../../../', import.meta.url);
const read = (file: string) => readFile(new URL(file, ROOT));
const BUILT = [NPM_PACKAGE, PYTHON_PACKAGE];

for (const { name, file } of BUILT) {
  test(`a build of ${name} equals its release`, async (t) => {
    const released = readReleased(name);
    const isSame = released === null || released.equals(await read(file));
    t.true(
      isSame,
      `${name} is released, and this code builds other files: raise its version`,
    );
  });
}

test('a released package is served after the version of its client was raised', (t) => {
  const { file } = NPM_PACKAGE;
  const next = 'npi-email-enrichment-1.1.0.tgz';
  const old = 'npi-email-enrichment-1.0.0.tgz';
  const served = readPackages([{ name: next, file }, PYTHON_PACKAGE]);
  t.true(served.has(next));
  t.deepEqual(served.get(old), readReleased(old) ?? Buffer.alloc(0));
});

test('a release of the service has the packages of its clients', async (t) => {
  const [, newest] = /^## \[(.+?)\]/m.exec(String(await read('CHANGELOG.md'))) ?? [];
  const isRelease = newest === manifest.version;
  t.true(isRelease || newest === 'Unreleased');
  const missing = BUILT.filter(({ name }) => isRelease && readReleased(name) === null);
  t.deepEqual(missing, [], 'copy them as RECIPES.md, Release, says');
});

test('the pages name the newest packages and images', async (t) => {
  const text = examples().map((example) => example.text);
  const packages = text.join('').match(/npi[_-]email[_-]enrichment-\d[^\s"]*/g) ?? [];
  t.deepEqual(new Set(packages), new Set(BUILT.map(({ name }) => name)));
  const kubernetes = ['README.md', 'example/kustomization.yaml'].map((file) =>
    read(`deploy/kubernetes/${file}`),
  );
  const tags = (await Promise.all(kubernetes))
    .join('')
    .matchAll(/(?:newTag: |target:)([\d.]+)/g);
  t.deepEqual(new Set([...tags].map(([, tag]) => tag)), new Set([manifest.version]));
});
