import { inBody, protocol } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import { answer, INCONCLUSIVE, type VerifierKind, type VerifierStep } from './verifier.ts';

/** NeverBounce's single check, version 4.2. */
export const NEVERBOUNCE = {
  id: 'neverbounce',
  document: 'https://developers.neverbounce.com/reference/single-check',
  url: 'https://api.neverbounce.com',
  rates: [{ calls: 10, perMs: 1000 }],
  callMs: 60_000,
  cost: 1,
  headersOf: () => ({}),
  questionAbout: (email, key) => ({
    path: `/v4.2/single/check?${new URLSearchParams({ key, email, address_info: '0' })}`,
  }),
  meanings: { 200: inBody(stepOfEnvelope) },
} as const satisfies VerifierKind;

const AUTH: VerifierStep = { kind: 'fatal', why: 'auth' };

/** Errors come with 200 and another `status`; there are six of them (…/reference/error-handling). */
const ERRORS = new Map<string, VerifierStep>([
  ['auth_failure', AUTH],
  ['bad_referrer', AUTH],
  ['throttle_triggered', { kind: 'retry', why: 'rate_limit', afterMs: null }],
  ['temp_unavail', { kind: 'retry', why: 'upstream', afterMs: null }],
]);

function stepOfEnvelope(body: Field): VerifierStep {
  const status = body.at('status').requiredText();
  if (status === 'success') return judge(body);
  const isAboutCredits =
    status === 'general_failure' && /credit|balance/i.test(body.at('message').text() ?? '');
  if (isAboutCredits) return { kind: 'fatal', why: 'credits' };
  return ERRORS.get(status) ?? protocol('status');
}

/**
 * The vendor has no word for greylisting: it waits for it, or says `unknown`. Its flags lower a `valid`, never raise
 * anything.
 */
function judge(body: Field): VerifierStep {
  const result = body.at('result').requiredText();
  const flags: ReadonlySet<unknown> = new Set(
    body
      .at('flags')
      .items()
      .map(({ value }) => value),
  );
  switch (result) {
    case 'valid':
      if (flags.has('disposable_email')) return answer('risky', 'disposable');
      if (flags.has('role_account')) return answer('risky', 'role');
      if (flags.has('spamtrap_network')) return answer('risky', null);
      return flags.has('accepts_all') ? answer('catch_all', null) : answer('valid', 'mailbox_ok');
    case 'invalid':
      return answer('invalid', flags.has('bad_dns') ? 'no_mx' : 'mailbox_missing');
    case 'disposable':
      return answer('invalid', 'disposable');
    case 'catchall':
      return answer('catch_all', null);
    default:
      return INCONCLUSIVE;
  }
}
