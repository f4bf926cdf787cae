import test from 'ava';
import fc from 'fast-check';
import {
  canonicalJson,
  jsonDepth,
  jsonErrorOffset,
  memberText,
} from '../../api/http/json-body.ts';
import { objectText, stringText, tokensOf, valueText } from '../support/json-text.ts';

// Tests api/http/json-body.ts, which handles JSON as text.

/** fast-check prints seed and path of a failure; TEST_SEED repeats it. */
const { TEST_SEED } = process.env;
const RUN = {
  numRuns: 500,
  ...(TEST_SEED === undefined ? {} : { seed: Number(TEST_SEED) }),
};
const space = fc.stringMatching(/^[ \t\r\n]{0,3}$/);

test('memberText returns the trimmed text of the last member with a given name', (t) => {
  const member = fc.record({
    name: stringText,
    value: valueText,
    gaps: fc.tuple(space, space, space, space),
  });
  fc.assert(
    fc.property(
      fc.array(member, { minLength: 1, maxLength: 6 }),
      fc.nat(),
      space,
      (members, pick, outside) => {
        const written = members.map(
          ({ name, value, gaps: [a, b, c, d] }) => `${a}${name}${b}:${c}${value}${d}`,
        );
        const text = `${outside}{${written.join(',')}}${outside}`;
        const wanted = JSON.parse(members[pick % members.length]?.name ?? '') as string;
        const last = members.findLast(({ name }) => JSON.parse(name) === wanted);
        t.is(memberText(text, wanted), last?.value ?? '');
        t.is(memberText(text, `${wanted} is not there`), null);
      },
    ),
    RUN,
  );
  t.is(memberText('{}', 'a'), null);
  t.is(memberText(' { } ', 'a'), null);
  t.is(memberText('{"b":{"a":1}}', 'a'), null);
  t.is(memberText('{"a\\u0000":1,"a":"}"}', 'a'), '"}"');
});

test('jsonDepth counts levels of objects and arrays, but not brackets in strings', (t) => {
  fc.assert(
    fc.property(
      fc.array(fc.constantFrom('[', '{'), { maxLength: 80 }),
      stringText,
      (opened, leaf) => {
        const before = opened.map((char) => (char === '[' ? '[1,' : '{"]":')).join('');
        const after = opened
          .toReversed()
          .map((char) => (char === '[' ? ',[]]' : ',"[":{}}'));
        t.is(
          jsonDepth(`${before}${leaf}${after.join('')}`),
          opened.length === 0 ? 0 : opened.length + 1,
        );
      },
    ),
    RUN,
  );
  t.is(jsonDepth('1'), 0);
  t.is(jsonDepth('[[],[[]]]'), 3);
  t.is(jsonDepth('['.repeat(1_000_000)), 1_000_000);
});

test('canonicalJson is the same for every notation of the same JSON', (t) => {
  const spellings = fc.array(fc.tuple(space, fc.nat(3)), { minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(valueText, spellings, (text, choices) => {
      const respelled = tokensOf(text).map((token, i) => {
        const [gap, choice] = choices[i % choices.length] ?? ['', 0];
        return `${gap}${respell(token.text, choice)}`;
      });
      t.is(canonicalJson(respelled.join('')), canonicalJson(text));
    }),
    RUN,
  );
  t.is(
    canonicalJson('{"b":1,"a":{"d":2,"c":3}}'),
    canonicalJson('{"a":{"c":3,"d":2},"b":1}'),
  );
  t.is(canonicalJson('{"a":1,"a":2}'), canonicalJson('{"a":2}'));
  t.is(
    canonicalJson('[1000,0.001,1.50,0e9,1e400]'),
    canonicalJson('[1e3,1E-3,15e-1,0,10.0e+399]'),
  );
  t.is(
    canonicalJson(`1e${'9'.repeat(10_000)}`),
    canonicalJson(`10e${'9'.repeat(9999)}8`),
  );
});

test('canonicalJson differs for JSON with a different meaning', (t) => {
  const texts = [
    ...[
      '1',
      '2',
      '10',
      '-1',
      '0',
      '-0',
      '0.1',
      '0.10000000000000001',
      '1e400',
      '1e401',
      '"1"',
      'true',
      'null',
    ],
    ...[
      '12345678901234567890',
      '12345678901234567891',
      '"1e0"',
      '""',
      '"a"',
      '"A"',
      '"\\u0000"',
      '"\\ud800"',
    ],
    ...[
      '"\\udfff"',
      '"é"',
      '"e\u0301"',
      '[]',
      '{}',
      '[[]]',
      '[1,2]',
      '[2,1]',
      '[12]',
      '["1,2"]',
      '[null]',
    ],
    ...[
      '{"a":1}',
      '{"a":2}',
      '{"b":1}',
      '{"a":"1"}',
      '{"a":1,"b":1}',
      '{"a":{"b":1}}',
      '{"":1}',
    ],
    ...[
      '{"__proto__":1}',
      '{"__proto__":{}}',
      '{"__proto__":{"a":1}}',
      '{"constructor":1}',
      '{"10":1}',
      '{"1e1":1}',
    ],
  ];
  t.is(new Set(texts.map(canonicalJson)).size, texts.length);
});

test('jsonErrorOffset points at the broken token, or at the end of incomplete JSON', (t) => {
  // A character that is invalid everywhere: unescaped control characters in strings, not a token
  // elsewhere.
  fc.assert(
    fc.property(valueText, fc.nat(), fc.boolean(), (text, pick, cut) => {
      const k = pick % (text.length + 1);
      const broken = cut ? text.slice(0, k) : `${text.slice(0, k)}\u0001${text.slice(k)}`;
      if (isJson(broken)) return;
      const around = tokensOf(text).find(
        ({ at, text: token }) => at < k && k <= at + token.length,
      );
      const offset = jsonErrorOffset(broken);
      t.true(
        offset <= k && offset >= (around?.at ?? k),
        `${JSON.stringify(broken)} ${offset}`,
      );
    }),
    RUN,
  );
});

test('jsonErrorOffset points at text after the first value', (t) => {
  for (const text of ['{}', '[1]', '"a"', '1', 'null']) {
    for (const rest of [',', ',1', ' {}', ':', '}', ']', '"', ' x']) {
      const offset = jsonErrorOffset(`${text}${rest}`);
      t.is(offset, text.length + (rest.startsWith(' ') ? 1 : 0), text + rest);
    }
  }
  // A broken token is reported at its first character.
  for (const text of ['nullx', '[1.x]', '-x'])
    t.is(jsonErrorOffset(text), text.startsWith('[') ? 1 : 0, text);
});

test('the text before jsonErrorOffset could always be completed to valid JSON', (t) => {
  const anything = fc.oneof(
    fc.stringMatching(/^[[\]{}:,"0-9.eE+\-a truefalsn\\]{0,20}$/),
    fc
      .tuple(objectText, fc.nat(), fc.string({ maxLength: 2 }))
      .map(([text, pick, patch]) => {
        const k = pick % (text.length + 1);
        return `${text.slice(0, k)}${patch}${text.slice(k + 1)}`;
      }),
  );
  fc.assert(
    fc.property(anything, (text) => {
      if (isJson(text)) return;
      const offset = jsonErrorOffset(text);
      t.true(offset >= 0 && offset <= text.length);
      t.true(isBeginning(text.slice(0, offset)), `${JSON.stringify(text)} ${offset}`);
    }),
    RUN,
  );
});

test('parsing deeply nested or very long JSON takes linear time', (t) => {
  // At this length quadratic time would exceed AVA's time-out.
  const n = 2_000_000;
  // Too deep for recursion.
  t.is(jsonErrorOffset('['.repeat(n)), n);
  // The text has one level, but a naive parser would recurse 21,000 levels.
  t.is(jsonErrorOffset('[},'.repeat(21_000)), 1);
  t.is(jsonErrorOffset(`[${'" ",'.repeat(n)}]`), n * 4 + 1);
  t.is(jsonErrorOffset('9'.repeat(n).concat('x')), n);
  t.is(jsonErrorOffset(`${' '.repeat(n)}?`), n);
  t.is(jsonErrorOffset(`"${'\\u0061'.repeat(10_000)}`), 0);
  const digits = `1${'0'.repeat(n)}1`;
  t.is(canonicalJson(digits), `${digits}e0`);
  t.is(canonicalJson(`0.${digits}000`), `${digits}e-${n + 2}`);
  t.is(memberText(`{${'"a":[1],'.repeat(n / 10)}"b":2}`, 'b'), '2');
});

function isJson(text: string): boolean {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Returns true if the text can be completed to JSON: tries possible next tokens, then closes all
 * open brackets.
 */
function isBeginning(text: string): boolean {
  const closing: string[] = [];
  for (const { text: token } of tokensOf(text)) {
    if (token === '{' || token === '[') closing.unshift(token === '{' ? '}' : ']');
    else if (token === '}' || token === ']') closing.shift();
  }
  return ['', '0', '"":0', ':0'].some((next) =>
    isJson(`${text}${next}${closing.join('')}`),
  );
}

/** Writes one token in another notation. */
function respell(token: string, choice: number): string {
  if (token.startsWith('"')) {
    const escaped = (char: string) =>
      `\\u${char.charCodeAt(0).toString(16).padStart(4, '0')}`;
    const plain = JSON.parse(token) as string;
    return choice === 0
      ? token
      : `"${Array.from({ length: plain.length }, (_, i) => escaped(plain.charAt(i))).join('')}"`;
  }
  if (!/^-?[0-9]/.test(token)) return token;
  const [mantissa = '', exponent = '0'] = token.toLowerCase().split('e');
  const longer = mantissa.includes('.') ? `${mantissa}0` : `${mantissa}.0`;
  return (
    [token, `${longer}E${exponent}`, `${longer}00e${exponent}`, token.toLowerCase()][
      choice
    ] ?? token
  );
}
