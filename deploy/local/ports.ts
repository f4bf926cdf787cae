import { createServer } from 'node:net';
import { LocalProblem } from './problem.ts';

export const LOOPBACK = '127.0.0.1';

/**
 * A loopback port that was free a moment ago, for servers that cannot be asked to choose one themselves.
 * Another program may take it first, so whoever starts a server on it tries again with another.
 */
export async function freePort(): Promise<number> {
  return await listenOnce(0);
}

/**
 * @param port a loopback port
 * @param server the name of what is to listen there, for the message
 * @param option what chooses another one, for the message
 * @throws {LocalProblem} `port_taken`
 */
export async function requirePortFree(port: number, server: string, option?: string): Promise<void> {
  try {
    await listenOnce(port);
  } catch {
    throw portTaken(port, server, option);
  }
}

export function portTaken(port: number, server: string, option?: string): LocalProblem {
  return new LocalProblem(
    'port_taken',
    `Port ${port} on ${LOOPBACK}, where ${server} is to listen, is taken: stop the program that uses it, or choose another port${option ? ` with ${option}` : ''}.`,
  );
}

function listenOnce(port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.once('error', reject);
    server.listen(port, LOOPBACK, () => {
      const address = server.address();
      server.close(() =>
        typeof address === 'object' && address !== null
          ? resolve(address.port)
          : reject(new Error('the probe listens on no port')),
      );
    });
  });
}
