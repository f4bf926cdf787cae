import { readFile } from 'node:fs/promises';
import test from 'ava';
import { orderByCost, type Situation } from '../../../activities/vendors/order.ts';
import { VERIFIERS } from '../../../activities/verification/verifiers/catalogue.ts';
import type { VendorYield } from '../../../db/lookups/spending.ts';
import { type Simulated, simulate } from '../../support/market.ts';

const SITUATION: Situation = { requestedType: 'professional', employer: 'domain' };
/** A lookup that starts with the cheapest vendor. */
const USUAL = 1;
/** A lookup that starts with the vendor that has the fewest calls. */
const EXPLORING = 20;

function vendor(id: string, dollarsPerCredit: number, credits = 1) {
  return { id, dollarsPerCredit, credits };
}

function measured(
  id: string,
  [calls, returned, credits]: readonly [number, number, number],
  situation: Situation = SITUATION,
): VendorYield {
  return { vendor: id, calls, returned, credits, ...situation };
}

function idsOf(...args: Parameters<typeof orderByCost>): string[] {
  return orderByCost(...args).map(({ id }) => id);
}

test('without measurements, vendors are ordered by the price of one result', (t) => {
  const vendors = [vendor('a', 0.3), vendor('b', 0.1, 2), vendor('c', 0.25)];
  t.deepEqual(idsOf(vendors, [], SITUATION, USUAL), ['b', 'c', 'a']);
});

test('a vendor whose paid addresses are often rejected comes later', (t) => {
  const vendors = [vendor('a', 0.1), vendor('b', 0.12)];
  const yields = [measured('a', [200, 40, 100]), measured('b', [200, 50, 50])];
  t.deepEqual(idsOf(vendors, yields, SITUATION, USUAL), ['b', 'a']);
});

test('a few unlucky calls do not change the order', (t) => {
  const vendors = [vendor('a', 0.1), vendor('b', 0.2)];
  t.deepEqual(idsOf(vendors, [measured('a', [3, 0, 2])], SITUATION, USUAL), ['a', 'b']);
});

test('measurements count only for the same requested type and kind of employer', (t) => {
  const vendors = [vendor('a', 0.1), vendor('b', 0.12)];
  const other = { requestedType: 'personal', employer: 'domain' } as const;
  const yields = [measured('a', [200, 10, 100], other)];
  t.deepEqual(idsOf(vendors, yields, SITUATION, USUAL), ['a', 'b']);
  t.deepEqual(idsOf(vendors, yields, other, USUAL), ['b', 'a']);
});

test('one lookup of twenty starts with the vendor that has the fewest calls', (t) => {
  const vendors = [vendor('free', 0), vendor('a', 0.1), vendor('b', 0.2)];
  const yields = [measured('a', [50, 20, 20]), measured('b', [2, 1, 1])];
  t.deepEqual(idsOf(vendors, yields, SITUATION, USUAL), ['free', 'a', 'b']);
  t.deepEqual(idsOf(vendors, yields, SITUATION, EXPLORING), ['free', 'b', 'a']);
});

test('the measured order finds as much as the default order for 20 % less', (t) => {
  const fixed = simulate({ isAuto: false });
  const auto = simulate({ isAuto: true });
  t.log(
    `$${fixed.dollars.toFixed(3)} per returned address in the default order, ` +
      `$${auto.dollars.toFixed(3)} in the measured order, ${fixed.share.toFixed(1)} % returned`,
  );
  t.is(auto.share, fixed.share);
  t.true(auto.dollars <= 0.8 * fixed.dollars);
});

test('deploy/going-live.md shows what each set of keys brings in the simulation', async (t) => {
  const page = await readPage('going-live.md');
  for (const [keys, options] of KEYS) {
    const { share, dollars } = simulate(options);
    const row = `| ${keys} | ${Math.round(share)} % | $${dollars.toFixed(2)} |`;
    t.true(page.includes(row), row);
  }
});

test('deploy/capacity.md shows how many NPIs each verifier can check', async (t) => {
  const page = await readPage('capacity.md');
  const { checks } = simulate({});
  const average = `a lookup needs ${checks.toFixed(1)} checks on average`;
  t.true(page.includes(average), average);
  for (const { id, rates } of Object.values(VERIFIERS)) {
    const perSecond = Math.min(
      ...rates.map(({ calls, perMs }) => (calls / perMs) * 1000),
    );
    const row = `| \`${id}\` | ${perSecond} | ${Math.round(perSecond / checks)} |`;
    t.true(page.includes(row), row);
  }
});

function readPage(name: string): Promise<string> {
  const url = new URL(`../../../deploy/${name}`, import.meta.url);
  return readFile(url, 'utf8');
}

/** The sets of keys in the page, as it names them. */
const KEYS: readonly (readonly [string, Simulated])[] = [
  ['Only RocketReach', { ids: ['rocketreach'] }],
  ['Only Hunter', { ids: ['hunter'] }],
  ['RocketReach and Hunter', { ids: ['rocketreach', 'hunter'] }],
  ['FullEnrich and a verifier', { ids: ['fullenrich'] }],
  ['FullEnrich, Prospeo, Hunter', { ids: ['fullenrich', 'prospeo', 'hunter'] }],
  ['All, in the default order', {}],
  ['All, with `"order": "auto"`', { isAuto: true }],
];
