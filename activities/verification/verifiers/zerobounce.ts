import {
  type HttpAnswer,
  jsonApi,
  protocol,
  retryAfterMs,
  stepOfBody,
  stepOfStatus,
} from '../../http/client.ts';
import { at, type Field, isAbsent, requiredText, wordOf } from '../../http/fields.ts';
import {
  answer,
  INCONCLUSIVE,
  type Verifier,
  type VerifierFacts,
  type VerifierOptions,
  type VerifierStep,
} from './verifier.ts';

/**
 * In the United States, where the people are whose addresses it is asked about; `api-eu.` is in the European Union, and
 * so is what was the only host once, `api.` (zerobounce.net/docs/api-dashboard, "API Endpoints").
 */
export const ZEROBOUNCE = {
  id: 'zerobounce',
  document: 'https://www.zerobounce.net/docs/email-validation-api-quickstart',
  url: 'https://api-us.zerobounce.net',
  rates: [{ calls: 20, perMs: 1000 }],
  // The vendor lets one validation take up to 60 s.
  callMs: 70_000,
  cost: 1,
} as const satisfies VerifierFacts;

/**
 * ZeroBounce's single validation, version 2 (zerobounce.net/docs/email-validation-api-quickstart). Key and address
 * are in the URL, as the vendor has it: what is thrown or returned here never holds the URL.
 */
export function createZeroBounce({ baseUrl, apiKey }: VerifierOptions): Verifier {
  const api = jsonApi(baseUrl, {}, ZEROBOUNCE.callMs);
  return {
    ...ZEROBOUNCE,
    check(email, signal) {
      const query = new URLSearchParams({ api_key: apiKey, email, ip_address: '' });
      return api.get(`/v2/validate?${query}`, signal, stepOf);
    },
  };
}

/** Errors come with 200, from some of the vendor's hosts with 400. */
function stepOf(found: HttpAnswer): VerifierStep {
  switch (found.status) {
    case 200:
    case 400:
      return stepOfBody(found, (body) => stepOfError(body) ?? judge(body));
    case 403:
      // "API Shield": the vendor fends off an attack, ours or not. A wrong key is an error with 200.
      return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(found.headers) };
    default:
      return stepOfStatus(found);
  }
}

/** One sentence for a wrong key and for an empty account, as text or in a list; the account is looked at for both. */
function stepOfError(body: Field): VerifierStep | null {
  const error = at(body, 'error');
  if (isAbsent(error) || error.value === '') return null;
  const text = JSON.stringify(error.value);
  if (/key/i.test(text)) return { kind: 'fatal', why: 'auth' };
  if (/credit/i.test(text)) return { kind: 'fatal', why: 'credits' };
  return protocol('error');
}

/** zerobounce.net/docs/email-list-validation/status-codes */
function judge(body: Field): VerifierStep {
  const status = requiredText(at(body, 'status')).toLowerCase().replaceAll('_', '-');
  const detail = wordOf(at(body, 'sub_status'));
  switch (status) {
    case 'valid':
      return stepOfValid(detail);
    case 'invalid':
      return stepOfInvalid(detail);
    case 'catch-all':
      return answer('catch_all', null);
    case 'do-not-mail':
      return stepOfUnwanted(detail);
    case 'spamtrap':
    case 'abuse':
      return answer('risky', null);
    case 'unknown':
      return stepOfUnknown(detail);
    default:
      return INCONCLUSIVE;
  }
}

/** The vendor counts domains that take anything as valid if their mail rarely bounces; nobody saw the mailbox. */
function stepOfValid(detail: string): VerifierStep {
  switch (detail) {
    case 'accept_all':
      return answer('catch_all', null);
    case 'role_based_accept_all':
      return answer('risky', 'role');
    case 'ai_agent_mailbox':
      // No person reads it.
      return answer('risky', null);
    default:
      return answer('valid', 'mailbox_ok');
  }
}

function stepOfInvalid(detail: string): VerifierStep {
  switch (detail) {
    case 'no_dns_entries':
    case 'does_not_accept_mail':
    case 'unroutable_ip_address':
      return answer('invalid', 'no_mx');
    case 'mailbox_quota_exceeded':
      return answer('invalid', 'mailbox_full');
    default:
      return answer('invalid', 'mailbox_missing');
  }
}

function stepOfUnwanted(detail: string): VerifierStep {
  switch (detail) {
    case 'disposable':
      return answer('risky', 'disposable');
    case 'role_based':
    case 'role_based_catch_all':
      return answer('risky', 'role');
    default:
      return answer('risky', null);
  }
}

function stepOfUnknown(detail: string): VerifierStep {
  switch (detail) {
    case 'greylisted':
      return { kind: 'greylisted' };
    case 'antispam_system':
      return answer('unknown', 'blocked');
    case 'timeout_exceeded':
    case 'mail_server_did_not_respond':
      return answer('unknown', 'timeout');
    default:
      return INCONCLUSIVE;
  }
}
