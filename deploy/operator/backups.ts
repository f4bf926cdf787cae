import type { Command } from 'commander';
import type { ChangedBy } from '../../db/operations/audit.ts';
import { noteBackup } from '../../db/operations/routines.ts';
import { audited } from './arguments.ts';
import type { Run } from './print.ts';

/** Adds the command `backups note`. */
export function addCommands(program: Command, run: Run): void {
  const parent = program.command('backups').description('record backups');
  audited(parent.command('note'), 'backup')
    .description(
      'record that a backup has just ended. An alert fires two days after the last one',
    )
    .action((by: ChangedBy) =>
      run(async (db) => {
        await noteBackup(db, by);
        return {
          data: { noted: true },
          parts: ['noted that a backup has just ended'],
        };
      }),
    );
}
