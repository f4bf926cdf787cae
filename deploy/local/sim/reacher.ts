import { NOBODY_KNOWN, ownerOf } from '../../../activities/verification/local-part.ts';
import {
  CLOSED_DOMAIN,
  DIRECT_DOMAIN,
  FREE_MAIL_DOMAINS,
  PRACTICE_DOMAINS,
  personOf,
} from './people.ts';
import {
  type Memory,
  ok,
  type SimRequest,
  type Source,
  type SubjectResponse,
  textOf,
} from './wire.ts';

/** The result of Reacher's SMTP check for an existing mailbox. */
const THERE = {
  can_connect_smtp: true,
  has_full_inbox: false,
  is_catch_all: false,
  is_deliverable: true,
  is_disabled: false,
};
const COME_BACK = 'transient: 4.7.1 Greylisting in action, please come back later';

/** For each kind of mailbox, Reacher's verdict and the result of its SMTP check. */
const MAILBOXES = {
  ok: ['safe', THERE],
  missing: ['invalid', { ...THERE, is_deliverable: false }],
  catchall: ['risky', { ...THERE, is_catch_all: true }],
  // Only the first check of an address has this result. The second check returns `ok`.
  greylisted: ['unknown', { error: { type: 'AsyncSmtpError', message: COME_BACK } }],
  full: ['risky', { ...THERE, has_full_inbox: true, is_deliverable: false }],
  role: ['risky', THERE],
  unknown: ['unknown', { error: { type: 'IOError', message: 'io: incomplete' } }],
} as const;

type Mailbox = keyof typeof MAILBOXES;

const MAGIC_MAILBOXES: ReadonlyMap<string, Mailbox> = new Map([
  [personOf('2000000135').workEmail, 'catchall'],
  [personOf('2000000143').workEmail, 'greylisted'],
]);

/**
 * Returns the kind of mailbox that an address has. The address can begin with the kind: for
 * example, `full.jones@…` is a full mailbox. If the domain is not one of the simulated domains, the
 * kind is `unknown`.
 * @param email in any case
 */
export function mailboxOf(email: string): Mailbox {
  const address = email.toLowerCase();
  const [local = '', domain = ''] = address.split('@');
  if (domain === CLOSED_DOMAIN || domain === DIRECT_DOMAIN) {
    return 'missing';
  }
  if (!PRACTICE_DOMAINS.includes(domain) && !FREE_MAIL_DOMAINS.includes(domain)) {
    return 'unknown';
  }
  if (ownerOf({ local, domain }, NOBODY_KNOWN) === 'shared') {
    return 'role';
  }
  const magic = MAGIC_MAILBOXES.get(address);
  if (magic) return magic;
  const kinds = Object.keys(MAILBOXES) as Mailbox[];
  return kinds.find((kind) => local.startsWith(`${kind}.`)) ?? 'ok';
}

/** Simulates version 1 of Reacher's API, which a self-hosted Reacher server offers. */
export const reacher: Source = {
  base: '/reacher',
  deny({ headers }, secret) {
    if (headers['x-reacher-secret'] === secret) return null;
    return {
      status: 400,
      body: { error: 'Missing or invalid x-reacher-secret header.' },
    };
  },
  routes: { 'POST /v1/check_email': check },
};

function check({ body }: SimRequest, memory: Memory): SubjectResponse {
  const email = textOf(body.to_email) ?? '';
  const mailbox = mailboxNow(email, memory);
  const [isReachable, smtp] = MAILBOXES[mailbox];
  const misc = { is_disposable: false, is_role_account: mailbox === 'role' };
  return [
    email,
    ok({ is_reachable: isReachable, misc, mx: { accepts_mail: true }, smtp }),
  ];
}

/** Returns the kind of mailbox at this attempt. A greylisted mailbox accepts the second attempt. */
function mailboxNow(email: string, memory: Memory): Mailbox {
  const mailbox = mailboxOf(email);
  if (mailbox !== 'greylisted') return mailbox;
  return memory.inTurn<Mailbox>(email, [mailbox], 'ok');
}
