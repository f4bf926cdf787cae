import { inBody, protocol } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import {
  INCONCLUSIVE,
  judgment,
  type VerifierKind,
  type VerifierStep,
} from './verifier.ts';

/**
 * NeverBounce's single check, version 4.2 (developers.neverbounce.com/reference/single-check, read
 * in November 2026). The rate is ours.
 */
export const NEVERBOUNCE = {
  id: 'neverbounce',
  url: 'https://api.neverbounce.com',
  rates: [{ calls: 10, perMs: 1000 }],
  callMs: 60_000,
  cost: 1,
  headersOf: () => ({}),
  requestFor: (email, key) => ({
    path: `/v4.2/single/check?${new URLSearchParams({ key, email, address_info: '0' })}`,
  }),
  meanings: { 200: inBody(stepOfEnvelope) },
} as const satisfies VerifierKind;

const AUTH: VerifierStep = { kind: 'fatal', why: 'auth' };

/**
 * Errors arrive with HTTP 200 and one of six `status` values other than `success`
 * (…/reference/error-handling).
 */
const ERRORS = new Map<string, VerifierStep>([
  ['auth_failure', AUTH],
  ['bad_referrer', AUTH],
  ['throttle_triggered', { kind: 'retry', why: 'rate_limit', afterMs: null }],
  ['temp_unavail', { kind: 'retry', why: 'upstream', afterMs: null }],
]);

function stepOfEnvelope(body: Field): VerifierStep {
  const status = body.at('status').requiredText();
  if (status === 'success') return readVerdict(body);
  if (status === 'general_failure') {
    const message = body.at('message').text() ?? '';
    if (/credit|balance/i.test(message)) {
      return { kind: 'fatal', why: 'credits' };
    }
  }
  return ERRORS.get(status) ?? protocol('status');
}

/**
 * Maps the vendor's results. The vendor has no result for greylisting. It waits for the mail
 * server, or returns `unknown`.
 */
const MEANINGS = new Map<string, VerifierStep>([
  ['valid', judgment('valid', 'mailbox_ok')],
  ['invalid', judgment('invalid', 'mailbox_missing')],
  ['disposable', judgment('invalid', 'disposable')],
  ['catchall', judgment('catch_all', null)],
]);

/** Flags that change a result to a worse one. The first match is used. */
const LOWERING = [
  ['valid', 'disposable_email', judgment('risky', 'disposable')],
  ['valid', 'role_account', judgment('risky', 'role')],
  ['valid', 'spamtrap_network', judgment('risky', null)],
  ['valid', 'accepts_all', judgment('catch_all', null)],
  ['invalid', 'bad_dns', judgment('invalid', 'no_mx')],
] as const;

function readVerdict(body: Field): VerifierStep {
  const result = body.at('result').requiredText();
  const items = body.at('flags').items();
  const flags = items.map(({ value }) => value);
  const lowered = LOWERING.find(([of, flag]) => of === result && flags.includes(flag));
  if (lowered) return lowered[2];
  return MEANINGS.get(result) ?? INCONCLUSIVE;
}
