import test from 'ava';
import { halfOf, personalHalvesLast } from '../../../activities/vendors/halves.ts';
import { accountOf, REQUESTED_TYPES } from '../../../db/words.ts';
import { createScriptedVendor, SUBJECT } from '../../support/vendors.ts';

const NEVER = new AbortController().signal;
const MISS = { kind: 'miss', reason: 'no_email' } as const;

/** A vendor that charges for each type. It records the types that it is asked for. */
function pricedByType() {
  const asked: string[] = [];
  const vendor = {
    ...createScriptedVendor('priced'),
    cost: (type: (typeof REQUESTED_TYPES)[number]) =>
      ({ professional: 1, personal: 3, any: 4 })[type],
    async submit({ requestedType }: { readonly requestedType: string }) {
      asked.push(requestedType);
      return MISS;
    },
  };
  return { vendor, asked };
}

for (const [type, id, cost] of [
  ['professional', 'priced', 1],
  ['personal', 'priced-personal', 3],
] as const) {
  test(`the ${type} half of a vendor asks only for ${type} emails, for ${cost} credits`, async (t) => {
    const { vendor, asked } = pricedByType();
    const half = halfOf(vendor, type);
    t.like(half, { id, gives: [type] });
    for (const requestedType of REQUESTED_TYPES) {
      t.is(half.cost(requestedType), cost);
      await half.submit({ ...SUBJECT, requestedType }, NEVER);
    }
    t.deepEqual(asked, Array(3).fill(type));
    t.is(accountOf(half.id), 'priced');
  });
}

test('a request of any type calls personal halves last, other requests in their order', (t) => {
  const ids = ['one', 'one-personal', 'two'];
  const sources = ids.map((id) => ({ vendor: { id } }));
  const order = (type: (typeof REQUESTED_TYPES)[number]) =>
    personalHalvesLast(sources, type).map(({ vendor }) => vendor.id);
  t.deepEqual(order('any'), ['one', 'two', 'one-personal']);
  t.deepEqual(order('personal'), ids);
});
