import { answer, jsonObject, onceEach, text, turnedAway } from './answer.ts';
import { type Mailbox, mailboxOf } from './magic.ts';
import type { VendorSim } from './reply.ts';

// Reacher's wire format, version 1, as a server of one's own gives it.

const LATENCY_MS = 1500;

/** @param secret what `x-reacher-secret` must be */
export function createReacherSim(secret: string): VendorSim {
  /** A mail server that greylists takes the second attempt. */
  const greylisted = onceEach();

  return {
    id: 'reacher',
    answer(request) {
      if (request.headers['x-reacher-secret'] !== secret) {
        return turnedAway(answer(400, { error: 'Missing or invalid x-reacher-secret header.' }));
      }
      if (request.method !== 'POST' || request.path !== '/v1/check_email') return turnedAway(answer(404, ''));
      const email = text(jsonObject(request)?.to_email);
      if (email === null) return turnedAway(answer(400, { error: 'to_email field is required.' }));
      const mailbox = mailboxOf(email);
      const isBack = mailbox === 'greylisted_once' && !greylisted.first(email);
      const reply = answer(200, output(email, isBack ? 'ok' : mailbox), { latencyMs: LATENCY_MS });
      return { operation: 'check', subject: email, reply };
    },
    reset: () => greylisted.reset(),
  };
}

/** The server's own rule decides what is `risky`, what `invalid` and what `safe`. */
function output(email: string, mailbox: Mailbox) {
  const [username = '', domain = ''] = email.split('@');
  const isError = mailbox === 'greylisted_once' || mailbox === 'unknown';
  return {
    input: email,
    is_reachable: REACHABLE[mailbox],
    misc: {
      is_disposable: false,
      is_role_account: mailbox === 'role',
      is_b2c: false,
      gravatar_url: null,
      haveibeenpwned: null,
    },
    mx: { accepts_mail: true, records: [`mx.${domain}.`] },
    smtp: isError ? { error: errorOf(mailbox) } : smtpOf(mailbox),
    syntax: {
      address: email,
      domain,
      is_valid_syntax: true,
      username,
      normalized_email: email,
      suggestion: null,
    },
    debug: { backend_name: 'simulator', duration: { secs: 1, nanos: 500_000_000 } },
  };
}

const REACHABLE = {
  ok: 'safe',
  missing: 'invalid',
  catch_all: 'risky',
  greylisted_once: 'unknown',
  full: 'risky',
  role: 'risky',
  unknown: 'unknown',
} as const satisfies Record<Mailbox, string>;

function smtpOf(mailbox: Mailbox) {
  return {
    can_connect_smtp: true,
    has_full_inbox: mailbox === 'full',
    is_catch_all: mailbox === 'catch_all',
    is_deliverable: mailbox !== 'missing' && mailbox !== 'full',
    is_disabled: false,
  };
}

function errorOf(mailbox: 'greylisted_once' | 'unknown') {
  return mailbox === 'unknown'
    ? { type: 'IOError', message: 'io: incomplete' }
    : {
        type: 'AsyncSmtpError',
        message: 'transient: 4.7.1 Greylisting in action, please come back later',
      };
}
