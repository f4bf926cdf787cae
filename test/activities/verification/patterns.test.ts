import test from 'ava';
import type { Format, Person } from '../../../activities/vendors/vendor.ts';
import {
  patternOf,
  testimonyOf,
  writeEmail,
} from '../../../activities/verification/patterns.ts';

const DOMAIN = 'clinic.example';

/** Parses `local of First Middle Last`. A missing middle name is written as `-`. */
function mailbox(text: string) {
  const [local = '', name = ''] = text.split(' of ');
  const [firstName = '', middle = '-', ...last] = name.split(' ');
  const middleName = middle === '-' ? null : middle;
  return { local, firstName, middleName, lastName: last.join(' ') };
}

function formatOf(...texts: readonly string[]): Format | null {
  const mailboxes = texts.map(mailbox);
  return patternOf({ domain: DOMAIN, mailboxes, isVerifiable: true })?.format ?? null;
}

for (const [format, ...texts] of [
  ['first.last', 'ana.cruz of ANA - CRUZ', 'bo.li of BO - LI', 'cy.roe of CY J ROE'],
  ['flast', 'acruz of ANA - CRUZ', 'bli of BO X LI', 'croe of CY J ROE'],
  ['fmlast', 'atcruz of ANA T CRUZ', 'bxli of BO X LI', 'cjroe of CY J ROE'],
  ['last.f', 'cruz.a of ANA - CRUZ', 'li.b of BO - LI', 'roe.c of CY J ROE'],
  ['numbered', 'ax104 of ANA - CRUZ', 'qz77 of BO - LI', 'k204417 of CY J ROE'],
] as const) {
  test(`the addresses of three people show the pattern ${format}`, (t) => {
    t.is(formatOf(...texts), format);
  });
}

test('an address may have all words of a surname joined, or only the last one', (t) => {
  const locals = ['ana.delacruz of ANA - DE LA CRUZ', 'bo.lopez of BO - GARCIA LOPEZ'];
  t.is(formatOf(...locals, 'cy.roe of CY - ROE'), 'first.last');
});

test('two people, or fewer than 70 % of all people, show no pattern', (t) => {
  const two = ['ana.cruz of ANA - CRUZ', 'bo.li of BO - LI'];
  t.is(formatOf(...two), null);
  const four = [...two, 'cy.roe of CY - ROE', 'di.poe of DI - POE'];
  t.is(formatOf(...four, 'emay of EVE - MAY'), 'first.last');
  t.is(formatOf(...four, 'emay of EVE - MAY', 'fday of FAY - DAY'), null);
});

const PRACTICE = { line1: null, city: null, state: null, zip: null };

function person(first: string, last: string, ...otherLasts: string[]): Person {
  const otherNames = otherLasts.map((other) => ({ first, last: other }));
  const rest = { middle: 'J', generation: null, practice: PRACTICE, otherStates: [] };
  return { first, last, otherNames, profileNames: [], profileSurnames: [], ...rest };
}

const patternIn = (format: Format, isVerifiable = true) => {
  return { domain: DOMAIN, format, isVerifiable };
};

test('an initial with the surname contradicts a pattern of full names', (t) => {
  const ana = person('Ana', 'Cruz', 'Roe');
  for (const local of ['acruz', 'a.cruz', 'cruz.a', 'ajcruz', 'aroe'])
    t.is(testimonyOf(local, patternIn('first.last'), ana), 'against', local);
  for (const local of ['ana.cruz', 'anacruz', 'annie.cruz', 'ana', 'cruz'])
    t.is(testimonyOf(local, patternIn('first.last'), ana), null, local);
  t.is(testimonyOf('acruz', patternIn('flast'), ana), null);
  t.is(testimonyOf('acruz', patternIn('first.last'), null), null);
});

test('a numbered address fits the pattern of a domain with numbered addresses', (t) => {
  const ana = person('Ana', 'Cruz');
  t.is(testimonyOf('qx17', patternIn('numbered'), ana), 'for');
  t.is(testimonyOf('frontdesk', patternIn('numbered'), ana), null);
  t.is(testimonyOf('qx17', patternIn('flast'), ana), null);
});

test('an address is built only from two full names, and only if a verifier can check it', (t) => {
  const ana = person('Ana', 'De la Cruz');
  t.is(writeEmail(patternIn('first.last'), ana), 'ana.delacruz@clinic.example');
  t.is(writeEmail(patternIn('first.last', false), ana), null);
  t.is(writeEmail(patternIn('flast'), ana), null);
  t.is(writeEmail(patternIn('numbered'), ana), null);
  t.is(writeEmail(patternIn('first.last'), person('', 'Cruz')), null);
  t.is(writeEmail(patternIn('first.last'), person('J', 'Cruz')), null);
});
