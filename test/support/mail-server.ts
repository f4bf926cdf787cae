import { text } from 'node:stream/consumers';
import { SMTPServer } from 'smtp-server';
import { freePort } from '../../deploy/ports.ts';

/** An email as the server received it. */
export interface ReceivedMail {
  readonly from: string;
  readonly to: readonly string[];
  readonly content: string;
}

/** Starts a mail server on this machine. It rejects every address while `status` is not null. */
export async function startMailServer() {
  const received: ReceivedMail[] = [];
  const state: { status: number | null } = { status: null };
  const server = new SMTPServer({
    authOptional: true,
    disabledCommands: ['STARTTLS'],
    onRcptTo({ address }, _session, done) {
      if (state.status === null) return done();
      done(Object.assign(new Error(`no ${address}`), { responseCode: state.status }));
    },
    async onData(stream, { envelope }, done) {
      const content = await text(stream);
      const to = envelope.rcptTo.map(({ address }) => address);
      const from = envelope.mailFrom ? envelope.mailFrom.address : '';
      received.push({ from, to, content });
      done();
    },
  });
  const port = await freePort();
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  return {
    port,
    url: `smtp://127.0.0.1:${port}`,
    state,
    /** Returns the emails to an address, oldest first. */
    to: (address: string) => received.filter(({ to }) => to.includes(address)),
    stop: () => new Promise<void>((resolve) => void server.close(() => resolve())),
  };
}
