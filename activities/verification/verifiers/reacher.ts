import { type HttpAnswer, jsonApi, stepOfBody, stepOfStatus } from '../../http/client.ts';
import {
  at,
  type Field,
  flagOf,
  isAbsent,
  objectAt,
  requiredText,
  textOf,
  wordOf,
} from '../../http/fields.ts';
import {
  answer,
  INCONCLUSIVE,
  type Verifier,
  type VerifierFacts,
  type VerifierOptions,
  type VerifierStep,
} from './verifier.ts';

export const REACHER = {
  id: 'reacher',
  document: 'https://docs.reacher.email',
  // Such as http://localhost:8080, or https://api.reacher.email for the hosted one.
  url: null,
  rates: [{ calls: 5, perMs: 1000 }],
  // It talks to slow mail servers, twice if one greylists it; its own rules allow it 45 s a step.
  callMs: 90_000,
  cost: 1,
} as const satisfies VerifierFacts;

/**
 * Reacher (docs.reacher.email; reacherhq/check-if-email-exists, its OpenAPI's `CheckEmailOutput`), on a server of
 * one's own or the hosted one. It is only ever talked to over HTTP: its license is the AGPL.
 */
export function createReacher({ baseUrl, apiKey }: VerifierOptions): Verifier {
  // A server of one's own reads the first, the hosted one the second.
  const keys = apiKey === '' ? {} : { 'x-reacher-secret': apiKey, authorization: apiKey };
  const api = jsonApi(baseUrl, keys, REACHER.callMs);
  return {
    ...REACHER,
    check: (email, signal) => api.post('/v1/check_email', { to_email: email }, signal, stepOf),
  };
}

function stepOf(found: HttpAnswer): VerifierStep {
  if (found.status === 200) return stepOfBody(found, stepOfOutput);
  // A server of one's own answers a wrong secret with 400 and names the header.
  const isSecret = found.status === 400 && /x-reacher-secret/i.test(found.text ?? '');
  return isSecret ? { kind: 'fatal', why: 'auth' } : stepOfStatus(found);
}

function stepOfOutput(body: Field): VerifierStep {
  const reachable = requiredText(at(body, 'is_reachable'));
  switch (reachable) {
    case 'safe':
      return answer('valid', 'mailbox_ok');
    case 'risky':
      return stepOfRisky(at(body, 'misc'), objectAt(body, 'smtp'));
    case 'invalid':
      return stepOfInvalid(objectAt(body, 'mx'), objectAt(body, 'smtp'));
    case 'unknown':
      return stepOfUnknown(objectAt(body, 'smtp'));
    default:
      return INCONCLUSIVE;
  }
}

/** First what no second source could mend. */
function stepOfRisky(misc: Field, smtp: Field): VerifierStep {
  if (flagOf(at(misc, 'is_disposable'))) return answer('risky', 'disposable');
  if (flagOf(at(misc, 'is_role_account'))) return answer('risky', 'role');
  if (flagOf(at(smtp, 'has_full_inbox'))) return answer('risky', 'mailbox_full');
  return flagOf(at(smtp, 'is_catch_all')) ? answer('catch_all', null) : answer('risky', null);
}

/** That it could not talk to mail servers which do exist says nothing about the mailbox, whatever it makes of it. */
function stepOfInvalid(mx: Field, smtp: Field): VerifierStep {
  if (!isAbsent(at(mx, 'accepts_mail')) && !flagOf(at(mx, 'accepts_mail'))) return answer('invalid', 'no_mx');
  if (flagOf(at(smtp, 'is_disabled'))) return answer('invalid', 'mailbox_disabled');
  if (!flagOf(at(smtp, 'can_connect_smtp'))) return INCONCLUSIVE;
  return answer('invalid', 'mailbox_missing');
}

/** Greylisting by name, by RFC 6647's code, or by any temporary reply that asks to come back. */
const GREYLISTED = /gr[ae]y[- ]?list|postgrey|\b4[.]7[.]1\b|(?:^transient:|\b45[01]\b).*\b(?:later|again)\b/i;

/** `error.message` is the mail server's own line, mostly without the code before it; `description` is Reacher's. */
function stepOfUnknown(smtp: Field): VerifierStep {
  const error = at(smtp, 'error');
  if (isAbsent(error)) return INCONCLUSIVE;
  const message = messageOf(error);
  // A server that refuses Reacher's own address says 4.7.1 as well.
  switch (wordOf(at(smtp, 'description'))) {
    case 'ipblacklisted':
    case 'needsrdns':
      return answer('unknown', 'blocked');
  }
  if (GREYLISTED.test(message)) return { kind: 'greylisted' };
  return /time(?:d )?-?\s?out/i.test(`${wordOf(at(error, 'type'))} ${message}`)
    ? answer('unknown', 'timeout')
    : INCONCLUSIVE;
}

/** A timeout has a duration there, and no text. */
function messageOf(error: Field): string {
  const message = at(error, 'message');
  return typeof message.value === 'string' ? (textOf(message) ?? '') : '';
}
