import { readFileSync } from 'node:fs';
import test from 'ava';

// Compares the tables of the page about limits with the constants in the code.

const ROOT = new URL('../../../', import.meta.url);
const page = readFileSync(new URL('api/docs/limits.md', ROOT), 'utf8');
const rows = new Map(
  [...page.matchAll(/^\| (.+) \| (.+) \|$/gm)].map(([, name = '', value = '']) => [
    name.replaceAll(/\[([^\]]*)\]\([^)]*\)|`/g, '$1'),
    value,
  ]),
);

/** Returns the value of a constant or a member, such as 65536 for `64 * 1024`. */
function constant(file: string, name: string): number {
  const source = readFileSync(new URL(file, ROOT), 'utf8');
  const found = new RegExp(`\\b${name}\\b"?(?: =|:) ([\\d_]+(?: \\* [\\d_]+)*)`).exec(
    source,
  );
  const factors = (found?.[1] ?? '').replaceAll('_', '').split(' * ').map(Number);
  return factors.reduce((product, factor) => product * factor, 1);
}

for (const [row, file, name, unit] of [
  ['NPIs of a submit', 'db/requests/pacing.json', 'npisPerBatch', 1],
  ['NPIs of a check', 'db/requests/pacing.json', 'npisPerCheck', 1],
  [
    'keys of an organization that are valid or less than a day old',
    'db/accounts/managed-keys.ts',
    'MAX_KEYS',
    1,
  ],
  ['body of a request', 'api/http/json-body.ts', 'MAX_BODY_BYTES', 1024],
  ['time in which a request must arrive', 'api/http/connection.ts', 'ARRIVAL_MS', 1000],
  [
    'time in which a file must arrive in the console',
    'api/console/console.ts',
    'FILE_MS',
    1000,
  ],
  ['time in which you must read a file', 'api/http/file.ts', 'FILE_MS', 1000],
  ['custom_data', 'api/http/submit-body.ts', 'MAX_CUSTOM_DATA_BYTES', 1],
  ['URL of a webhook', 'api/http/webhook-url.ts', 'MAX_URL_LENGTH', 1],
  ['Prefer: wait', 'api/http/prefer.ts', 'MAX_WAIT_S', 1],
  ['items on a page of a list', 'api/http/validation.ts', 'most', 1],
  ['invalid keys from an IP address', 'api/http/overload.ts', 'MAX_FAILURES', 1],
  [
    'requests of a connection without a response',
    'api/http/connection.ts',
    'MAX_PIPELINED',
    1,
  ],
  ['resends of a webhook delivery', 'db/webhooks/resends.ts', 'RESENDS_PER_HOUR', 1],
  [
    'deliveries to you at the same time',
    'db/webhooks/admission.ts',
    'ORGANIZATION_CONCURRENCY',
    1,
  ],
  [
    'deliveries to one host at the same time',
    'db/webhooks/admission.ts',
    'HOST_CONCURRENCY',
    1,
  ],
  [
    'deliveries to an unproven receiver at the same time',
    'db/webhooks/admission.ts',
    'UNPROVEN_HOST_CONCURRENCY',
    1,
  ],
  ['test events at the same time', 'api/console/signing.ts', 'maxRunningPerClient', 1],
  [
    'attempts to an unproven IP address',
    'db/webhooks/networks.ts',
    'CUSTOMER_ATTEMPTS_PER_HOUR',
    1,
  ],
  [
    'signatures with the old secret after a rotation',
    'db/accounts/webhook-secrets.ts',
    'OVERLAP_MS',
    3_600_000,
  ],
] as const) {
  test(`the page about limits has the right value: ${row}`, (t) => {
    const [value] = /[\d,]+/.exec(rows.get(row) ?? '') ?? [];
    t.is(Number(value?.replaceAll(',', '')), constant(file, name) / unit);
  });
}
