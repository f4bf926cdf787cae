import fc from 'fast-check';

// Valid JSON as text, with everything that a parser would lose or normalize: white space, escapes,
// numbers beyond double precision, escaped lone surrogates, and names that occur twice, look like
// integers, or name a prototype.

const space = fc.stringMatching(/^[ \t\r\n]{0,2}$/);

const number = fc.oneof(
  fc.constantFrom(
    '0',
    '-0',
    '1.0',
    '1e400',
    '-1E-400',
    '0.10',
    '12345678901234567890',
    '1e+5',
    '5e-324',
  ),
  fc.stringMatching(
    /^-?(?:0|[1-9][0-9]{0,24})(?:\.[0-9]{1,20})?(?:[eE][+-]?[0-9]{1,4})?$/,
  ),
);

const character = fc.oneof(
  { weight: 4, arbitrary: fc.stringMatching(/^[a-z0-9:,{}[\]/ ]$/) },
  fc.constantFrom(
    '\\u0000',
    '\\ud800',
    '\\uDFFF',
    '\\"',
    '\\\\',
    '\\/',
    '\\n',
    '\\u00e9',
    '\u007f',
    '\u2028',
    '😀',
  ),
  fc
    .string({ unit: 'binary', minLength: 1, maxLength: 1 })
    .filter((char) => !/["\\\p{Cc}\p{Cs}]/u.test(char)),
);

/** A string with its quotes. */
export const stringText = fc
  .array(character, { maxLength: 12 })
  .map((characters) => `"${characters.join('')}"`);

const name = fc.oneof(
  fc.constantFrom(
    '""',
    '"__proto__"',
    '"constructor"',
    '"10"',
    '"9"',
    '"a"',
    '"\\u0061"',
    '"custom_data"',
  ),
  stringText,
);

const list = (opening: string, items: fc.Arbitrary<string>, closing: string) =>
  fc
    .tuple(space, fc.array(items, { maxLength: 6 }))
    .map(([gap, texts]) => `${opening}${gap}${texts.join(',')}${closing}`);

const padded = (text: fc.Arbitrary<string>) =>
  fc.tuple(space, text, space).map((parts) => parts.join(''));

const { value, object } = fc.letrec<{
  value: string;
  object: string;
  array: string;
  member: string;
}>((tie) => ({
  value: fc.oneof(
    { depthSize: 'small', withCrossShrink: true },
    fc.oneof(number, stringText, fc.constantFrom('true', 'false', 'null')),
    tie('object'),
    tie('array'),
  ),
  member: fc.tuple(padded(name), padded(tie('value'))).map((parts) => parts.join(':')),
  object: list('{', tie('member'), '}'),
  array: list('[', padded(tie('value')), ']'),
}));

/** Any value, without white space around it. */
export const valueText = value;
/** An object, without white space around it. */
export const objectText = object;

/** Returns the tokens of valid JSON text with their offsets. White space is left out. */
export function tokensOf(text: string): { readonly text: string; readonly at: number }[] {
  return [...text.matchAll(/"(?:[^"\\]|\\.)*"|[-+.\w]+|[[\]{}:,]/gs)].map((match) => ({
    text: match[0],
    at: match.index,
  }));
}
