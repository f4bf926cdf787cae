import test from 'ava';
import { parseSources } from '../../../activities/vendors/file/config.ts';
import { sourceText } from '../../support/adapters.ts';

/** The problems that a file with this one vendor has. */
function problemsOf(text: string): string[] {
  try {
    parseSources(text, (name) => (name === 'VENDOR_ABSENT' ? undefined : 'key-of-a-test'));
    return [];
  } catch (error) {
    if (!(error instanceof Error) || error.name !== 'SourcesError') throw error;
    return error.message
      .split('\n')
      .slice(1)
      .map((line) => line.trim());
  }
}

for (const [rest, problem] of [
  [{ id: 'Listed!' }, '[0].id must be 2 to 31 small letters, digits and hyphens'],
  [{ id: 'hunter' }, '[0].id is the name of a source of our own'],
  [{ url: 'ftp://x.example/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: '/people' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'http://x.example/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'http://10.0.0.1/{npi}' }, '[0].url must be an https URL; http is for this machine only'],
  [
    { url: 'http://127.0.0.1.x.example/{npi}' },
    '[0].url must be an https URL; http is for this machine only',
  ],
  [{ url: 'https://{domain}/x' }, '[0].url may have placeholders in its path and query only'],
  [{ url: 'https://x.example:{npi}/x' }, '[0].url must be an https URL; http is for this machine only'],
  [{ url: 'https://me:pw@x.example/{npi}' }, '[0].url may have placeholders in its path and query only'],
  [{ url: 'https://x.example/{ssn}' }, '[0].url has no placeholder {ssn}'],
  [{ method: 'POST', body: { who: ['{first} {age}', '{ssn}'] } }, '[0].body has no placeholder {age}, {ssn}'],
  [{ needs: ['npi'] }, '[0].needs must list name, of which the URL or the body has placeholders'],
  [
    { needs: [], method: 'POST', body: { city: '{city}' } },
    '[0].needs must list npi, name, address, of which the URL or the body has placeholders',
  ],
  [{ headers: { 'x-key': `\${VENDOR_ABSENT}` } }, '[0].headers.x-key needs VENDOR_ABSENT, which is not set'],
  [
    { headers: { 'x-key': `\${DATABASE_URL}` } },
    '[0].headers.x-key may name variables that begin with VENDOR_ only',
  ],
  [
    { headers: { 'x-key': `\${VENDOR_LISTED_KEY} \${database_url}` } },
    '[0].headers.x-key may name variables that begin with VENDOR_ only',
  ],
  [{ headers: { 'x-key': 'a\nb' } }, '[0].headers.x-key is not a value of a header'],
  [{ method: 'PUT' }, '[0].method must be one of [GET, POST]'],
  [{ method: 'POST' }, '[0].body is missing'],
  [{ body: {} }, '[0].body is for the method POST only'],
  [{ gives: [] }, '[0].gives must contain at least 1 items'],
  [{ gives: ['both'] }, '[0].gives[0] must be one of [professional, personal]'],
  [{ cost: '1' }, '[0].cost must be a number'],
  [{ may_store: undefined }, '[0].may_store is missing'],
  [{ timeout_ms: 5 }, '[0].timeout_ms must be greater than or equal to 1000'],
  [{ identity: undefined }, '[0].identity is missing'],
  [
    { identity: { first: '/first', state: '/state' } },
    '[0].identity must point at an NPI, a full name, or a first and a last name',
  ],
  [{ misses: {} }, '[0].misses is no setting of a vendor'],
  [{ miss: { statuses: [500] } }, '[0].miss.statuses[0] must be less than or equal to 499'],
  [
    { candidates: { list: 'results', email: '/a' } },
    '[0].candidates.list must be a JSON pointer such as /results/0/email',
  ],
  [
    { candidates: { list: '', email: '/a', status: { pointer: '/s', values: { ok: 'fine' } } } },
    '[0].candidates.status.values.ok must be one of [valid, catch_all, risky, invalid, unknown]',
  ],
] as const) {
  test(`a vendor with ${JSON.stringify(rest)} is refused: ${problem}`, (t) => {
    t.deepEqual(problemsOf(sourceText('https://x.example', rest)), [problem]);
  });
}

test('all problems of a file are told at once, each with its place', (t) => {
  const [good] = JSON.parse(sourceText('https://x.example'));
  const bad = { ...good, id: 'x', cost: -1, candidates: {}, url: 'https://x.example/{ssn}' };
  t.deepEqual(problemsOf(JSON.stringify([good, bad])), [
    '[1].id must be 2 to 31 small letters, digits and hyphens',
    '[1].url has no placeholder {ssn}',
    '[1].cost must be greater than or equal to 0',
    '[1].candidates.list is missing',
    '[1].candidates.email is missing',
  ]);
});

test('two vendors of one id are refused', (t) => {
  const [one] = JSON.parse(sourceText('https://x.example'));
  t.deepEqual(problemsOf(JSON.stringify([one, one])), ['[1] contains a duplicate value']);
});

for (const [text, problem] of [
  ['', 'not JSON'],
  ['[{"key":"s3cr3t",}]', 'not JSON (line 1 column 18)'],
  ['{}', 'value must be an array'],
  ['null', 'value must be an array'],
] as const) {
  test(`a file that is ${JSON.stringify(text)} is refused without quoting it`, (t) => {
    t.deepEqual(problemsOf(text), [problem]);
  });
}

test('no problem tells a secret or a value', (t) => {
  const rest = {
    url: 'https://me:pa55word@x.example/{npi}',
    cost: 'pa55word',
    headers: { 'x-key': 'pa55word\n' },
  };
  const problems = problemsOf(sourceText('https://x.example', rest));
  t.is(problems.length, 3);
  t.notRegex(problems.join(), /pa55word|key-of-a-test/);
});
