import test from 'ava';
import { idPattern, isId, newId } from '../../db/connection/ids.ts';

const DIGITS = '0123456789abcdefghjkmnpqrstvwxyz';

/** Returns the UUID of a TypeID. */
function uuidOf(id: string): string {
  const number = [...id.slice(id.indexOf('_') + 1)].reduce(
    (sum, digit) => sum * 32n + BigInt(DIGITS.indexOf(digit)),
    0n,
  );
  const hex = number.toString(16).padStart(32, '0');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, '$1-$2-$3-$4-$5');
}

test('an id is a TypeID: a prefix and 26 characters that encode a UUIDv7 of now', (t) => {
  // The example of the TypeID specification.
  t.is(
    uuidOf('prefix_01h455vb4pex5vsknk084sn02q'),
    '01890a5d-ac96-774b-bcce-b302099a8057',
  );
  const before = Date.now();
  const ids = Array.from({ length: 100 }, () => newId('bat'));
  const after = Date.now();
  for (const id of ids) {
    t.regex(id, new RegExp(idPattern('bat')));
    t.true(isId('bat', id) && !isId('req', id));
    const uuid = uuidOf(id);
    t.regex(
      uuid,
      /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/,
    );
    const at = Number.parseInt(uuid.replace('-', '').slice(0, 12), 16);
    t.true(at >= before && at <= after + 1, uuid);
  }
  t.is(
    new Set(ids.map((id) => uuidOf(id).slice(19))).size,
    100,
    'the last 62 bits are random',
  );
});

test('each id that a process creates sorts after the last, even within a millisecond', (t) => {
  const ids = Array.from({ length: 20_000 }, () => newId('msg'));
  t.deepEqual(ids.toSorted(), ids);
});
