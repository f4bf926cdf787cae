import { answer, turnedAway } from './answer.ts';
import { type Mailbox, mailboxOf } from './magic.ts';
import type { Reply, VendorSim } from './reply.ts';

// NeverBounce's wire format, version 4.2, as its documents give it: errors come with 200 and another `status`.

const LATENCY_MS = 800;
/** The vendor waits for greylisting to pass before it answers. */
const GREYLISTED_LATENCY_MS = 12_000;

/** @param apiKey what `key` must be */
export function createNeverBounceSim(apiKey: string): VendorSim {
  return {
    id: 'neverbounce',
    answer({ method, path, query }) {
      if (method !== 'GET' || path !== '/v4.2/single/check') return turnedAway(answer(404, ''));
      if (query.get('key') !== apiKey) return turnedAway(failure('auth_failure', 'Invalid API key'));
      const email = query.get('email');
      if (!email) return turnedAway(failure('general_failure', "Missing required parameter 'email'"));
      const mailbox = mailboxOf(email);
      const latencyMs = mailbox === 'greylisted_once' ? GREYLISTED_LATENCY_MS : LATENCY_MS;
      const reply = answer(200, success(WORDS[mailbox]), { latencyMs });
      return { operation: 'check', subject: email, reply };
    },
    reset() {},
  };
}

function failure(status: string, message: string): Reply {
  return answer(200, { status, message, execution_time: 5 });
}

function success([result, flags]: readonly [string, readonly string[]]) {
  return {
    status: 'success',
    result,
    flags: ['has_dns', 'has_dns_mx', ...flags],
    suggested_correction: '',
    execution_time: 499,
  };
}

const WORDS: Readonly<Record<Mailbox, readonly [result: string, flags: readonly string[]]>> = {
  ok: ['valid', ['smtp_connectable']],
  missing: ['invalid', ['smtp_connectable']],
  catch_all: ['catchall', ['smtp_connectable', 'accepts_all']],
  greylisted_once: ['valid', ['smtp_connectable']],
  full: ['invalid', ['smtp_connectable']],
  role: ['valid', ['smtp_connectable', 'role_account']],
  unknown: ['unknown', []],
};
