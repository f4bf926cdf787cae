import { answer, onceEach, turnedAway } from './answer.ts';
import { type Mailbox, mailboxOf } from './magic.ts';
import type { VendorSim } from './reply.ts';

// ZeroBounce's wire format, version 2, as its documents give it: errors come with 200.

const LATENCY_MS = 800;

/** @param apiKey what `api_key` must be */
export function createZeroBounceSim(apiKey: string): VendorSim {
  /** A mail server that greylists takes the second attempt. */
  const greylisted = onceEach();

  return {
    id: 'zerobounce',
    answer({ method, path, query }) {
      if (method !== 'GET' || path !== '/v2/validate') return turnedAway(answer(404, ''));
      if (query.get('api_key') !== apiKey) {
        return turnedAway(answer(200, { error: 'Invalid API Key or your account ran out of credits' }));
      }
      const email = query.get('email');
      if (!email) return turnedAway(answer(400, { error: 'Missing parameter: email' }));
      const mailbox = mailboxOf(email);
      const isBack = mailbox === 'greylisted_once' && !greylisted.first(email);
      const reply = answer(200, validation(email, isBack ? 'ok' : mailbox), { latencyMs: LATENCY_MS });
      return { operation: 'check', subject: email, reply };
    },
    reset: () => greylisted.reset(),
  };
}

function validation(email: string, mailbox: Mailbox) {
  const [account = '', domain = ''] = email.split('@');
  const [status, subStatus] = WORDS[mailbox];
  return {
    address: email,
    status,
    sub_status: subStatus,
    free_email: false,
    did_you_mean: null,
    account,
    domain,
    domain_age_days: '4242',
    smtp_provider: '',
    mx_found: 'true',
    mx_record: `mx.${domain}`,
    firstname: null,
    lastname: null,
    gender: null,
    country: null,
    region: null,
    city: null,
    zipcode: null,
    processed_at: new Date().toISOString().replace('T', ' ').replace('Z', ''),
  };
}

const WORDS: Readonly<Record<Mailbox, readonly [status: string, subStatus: string]>> = {
  ok: ['valid', ''],
  missing: ['invalid', 'mailbox_not_found'],
  catch_all: ['catch-all', ''],
  greylisted_once: ['unknown', 'greylisted'],
  full: ['invalid', 'mailbox_quota_exceeded'],
  role: ['do_not_mail', 'role_based'],
  unknown: ['unknown', 'exception_occurred'],
};
