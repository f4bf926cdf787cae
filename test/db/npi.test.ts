import test from 'ava';
import { hasNpiCheckDigit } from '../../db/providers/npi.ts';
import { MAGIC } from '../../deploy/local/sim/magic.ts';

for (const npi of [
  '1234567893',
  '1720377294',
  '1568946812',
  '1265829667',
  '1003000100',
]) {
  test(`${npi} has a valid check digit`, (t) => {
    t.true(hasNpiCheckDigit(npi));
  });
}

for (const npi of [
  '1234567898',
  '1234567890',
  '2000000011',
  '123456789',
  '12345678933',
  '123456789x',
  '١٢٣٤٥٦٧٨٩٣',
  '',
]) {
  test(`'${npi}' does not have a valid check digit`, (t) => {
    t.false(hasNpiCheckDigit(npi));
  });
}

test('exactly one of ten possible last digits of an NPI is valid', (t) => {
  for (const stem of ['123456789', '200000001', '999999999', '000000000']) {
    t.is(
      Array.from('0123456789').filter((digit) => hasNpiCheckDigit(stem + digit)).length,
      1,
    );
  }
});

test('an NPI with two swapped neighboring digits is invalid', (t) => {
  t.false(hasNpiCheckDigit('1234567983'));
});

test('every magic NPI of the sandbox has a valid check digit', (t) => {
  t.deepEqual(
    [...MAGIC.keys()].filter((npi) => !hasNpiCheckDigit(npi)),
    [],
  );
});
