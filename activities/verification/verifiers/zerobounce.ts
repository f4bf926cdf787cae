import { inBody, protocol, retryAfterMs } from '../../http/client.ts';
import type { Field } from '../../http/fields.ts';
import {
  INCONCLUSIVE,
  judgment,
  type VerifierKind,
  type VerifierStep,
} from './verifier.ts';

const readBody = inBody((body) => stepOfError(body) ?? readVerdict(body));

/**
 * ZeroBounce's single validation, version 2. We use the host in the United States, where the
 * providers live. The hosts that start with `api-eu.` and `api.` are in the European Union
 * (zerobounce.net/docs/api-dashboard, "API Endpoints", read in November 2026). The rate is ours.
 */
export const ZEROBOUNCE = {
  id: 'zerobounce',
  url: 'https://api-us.zerobounce.net',
  rates: [{ calls: 20, perMs: 1000 }],
  // The vendor lets one validation take up to 60 s.
  callMs: 70_000,
  cost: 1,
  headersOf: () => ({}),
  requestFor: (email, apiKey) => ({
    path: `/v2/validate?${new URLSearchParams({ api_key: apiKey, email, ip_address: '' })}`,
  }),
  meanings: {
    // Errors arrive with 200, and from some of the vendor's hosts with 400.
    200: readBody,
    400: readBody,
    // "API Shield": the vendor blocks an attack, which may have nothing to do with us. A wrong key
    // is reported with 200 instead.
    403: ({ headers }) => ({
      kind: 'retry',
      why: 'upstream',
      afterMs: retryAfterMs(headers),
    }),
  },
} as const satisfies VerifierKind;

/**
 * Reads an error text or a list of error texts. A wrong key and an empty account have the same
 * text, and in both cases the operator has to check the account.
 */
function stepOfError(body: Field): VerifierStep | null {
  const error = body.at('error');
  if (error.isAbsent || error.value === '') return null;
  const texts: readonly unknown[] = Array.isArray(error.value)
    ? error.value
    : [error.value];
  const text = texts.filter((one) => typeof one === 'string').join('\n');
  if (/key/i.test(text)) return { kind: 'fatal', why: 'auth' };
  if (/credit/i.test(text)) return { kind: 'fatal', why: 'credits' };
  return protocol('error');
}

const NO_MX = judgment('invalid', 'no_mx');
const ROLE = judgment('risky', 'role');
const RISKY = judgment('risky', null);

/**
 * Maps a status, or a status with its sub-status
 * (zerobounce.net/docs/email-list-validation/status-codes).
 */
const MEANINGS: ReadonlyMap<string, VerifierStep> = new Map([
  ['valid', judgment('valid', 'mailbox_ok')],
  // The vendor calls catch-all domains valid if their mail rarely bounces. The mailbox was not
  // checked.
  ['valid accept_all', judgment('catch_all', null)],
  ['valid role_based_accept_all', ROLE],
  // The mailbox is not read by a person.
  ['valid ai_agent_mailbox', RISKY],
  ['invalid', judgment('invalid', 'mailbox_missing')],
  ['invalid no_dns_entries', NO_MX],
  ['invalid does_not_accept_mail', NO_MX],
  ['invalid unroutable_ip_address', NO_MX],
  ['invalid mailbox_quota_exceeded', judgment('invalid', 'mailbox_full')],
  ['catch-all', judgment('catch_all', null)],
  ['do-not-mail', RISKY],
  ['do-not-mail disposable', judgment('risky', 'disposable')],
  ['do-not-mail role_based', ROLE],
  ['do-not-mail role_based_catch_all', ROLE],
  ['spamtrap', RISKY],
  ['abuse', RISKY],
  ['unknown greylisted', { kind: 'greylisted' }],
  ['unknown antispam_system', judgment('unknown', 'blocked')],
  ['unknown timeout_exceeded', judgment('unknown', 'timeout')],
  ['unknown mail_server_did_not_respond', judgment('unknown', 'timeout')],
]);

function readVerdict(body: Field): VerifierStep {
  const status = body.at('status').requiredText().toLowerCase().replaceAll('_', '-');
  const detail = body.at('sub_status').word();
  const detailed = MEANINGS.get(`${status} ${detail}`);
  if (detailed) return detailed;
  return MEANINGS.get(status) ?? INCONCLUSIVE;
}
